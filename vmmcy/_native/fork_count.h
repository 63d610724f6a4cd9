/* How many forks lie between this process and the one that loaded the library:
 * whatever was made under another count belongs to a parent. Each file that
 * includes this counts for itself. */
#pragma once
#include <pthread.h>

static unsigned long vmmcy_fork_count;

static void vmmcy_count_fork(void) {
    vmmcy_fork_count++;
}

__attribute__((constructor)) static void vmmcy_watch_forks(void) {
    pthread_atfork(0, 0, vmmcy_count_fork);
}
