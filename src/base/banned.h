/* Calls that lose errors, bounds or determinism do not compile. Included by err.h, so everywhere. */
#ifndef BASE_BANNED_H
#define BASE_BANNED_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#pragma GCC poison strcpy strcat sprintf vsprintf gets atoi atol atof rand srand strtok

#endif
