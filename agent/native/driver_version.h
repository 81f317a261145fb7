/*
 * Which driver the library belongs to. The build sets DRIVER_BRANCH; what a branch lacks is not
 * exported (symbols.txt) or said to be unsupported.
 */
#ifndef EMO_DRIVER_VERSION_H
#define EMO_DRIVER_VERSION_H

#if DRIVER_BRANCH == 450
#define DRIVER_VERSION "450.248.02"
#define CUDA_VERSION 11000
#elif DRIVER_BRANCH == 470
#define DRIVER_VERSION "470.256.02"
#define CUDA_VERSION 11040
#elif DRIVER_BRANCH == 535
#define DRIVER_VERSION "535.216.03"
#define CUDA_VERSION 12020
#elif DRIVER_BRANCH == 580
#define DRIVER_VERSION "580.95.05"
#define CUDA_VERSION 13000
#else
#error "DRIVER_BRANCH must be 450, 470, 535 or 580"
#endif

#define FIRST_BRANCH_WITH_POWER_FIELDS 535

#endif
