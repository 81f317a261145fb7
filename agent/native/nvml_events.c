/* Critical errors (XIDs), as those learn of them who wait for events. */
#include <stdlib.h>

#include "nvml_call.h"

enum { EVENT_XID = 0x8 };

/* What a caller waits for; events before `next` are known to it. */
typedef struct nvml_event_set_st {
    unsigned gpus; /* a bit for each */
    uint64_t next;
} *nvml_event_set;

static const int64_t POLL_NS = 5000000;

NVML_API int nvmlEventSetCreate(nvml_event_set *set)
{
    nvml_call call;
    if (call_begin(&call, __func__) && call_needs(&call, set != NULL)) {
        nvml_event_set made = calloc(1, sizeof *made);
        if (made)
            made->next = call.world->event_count;
        else
            call.result = NVML_MEMORY;
        *set = made;
    }
    return call_end(&call);
}

NVML_API int nvmlEventSetFree(nvml_event_set set)
{
    nvml_call call;
    if (call_begin(&call, __func__) && call_needs(&call, set != NULL))
        free(set);
    return call_end(&call);
}

NVML_API int nvmlDeviceGetSupportedEventTypes(nvml_device device, unsigned long long *types)
{
    nvml_call call;
    if (call_device(&call, __func__, device) && call_needs(&call, types != NULL))
        *types = EVENT_XID;
    return call_end(&call);
}

NVML_API int nvmlDeviceRegisterEvents(nvml_device device, unsigned long long types, nvml_event_set set)
{
    nvml_call call;
    if (call_device(&call, __func__, device) && call_needs(&call, set != NULL) &&
        call_supports(&call, types == EVENT_XID))
        set->gpus |= 1u << call.index;
    return call_end(&call);
}

/* The next event of the set, if there is one. */
static int take_event(const sim_world *world, nvml_event_set set, nvml_event *event)
{
    if (world->event_count - set->next > MAX_EVENTS)
        set->next = world->event_count - MAX_EVENTS; /* older ones are forgotten */
    while (set->next < world->event_count) {
        const xid_event *found = &world->events[set->next++ % MAX_EVENTS];
        if (!(set->gpus & 1u << found->gpu))
            continue;
        *event = (nvml_event){device_of(found->gpu, NO_INSTANCE), EVENT_XID, found->xid, ~0u, ~0u};
        return 1;
    }
    return 0;
}

NVML_API int nvmlEventSetWait_v2(nvml_event_set set, nvml_event *event, unsigned timeout_ms)
{
    int64_t until_ns = real_now_ns() + (int64_t)timeout_ms * 1000000;
    for (;;) {
        nvml_call call;
        if (!call_begin(&call, __func__) || !call_needs(&call, set && event) || take_event(call.world, set, event))
            return call_end(&call);
        if (real_now_ns() >= until_ns) {
            call.result = NVML_TIMEOUT;
            return call_end(&call);
        }
        call_drop(&call);
        real_sleep_ns(POLL_NS);
    }
}
