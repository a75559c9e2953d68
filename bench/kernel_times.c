// Writes the begin, end, number of thread blocks, graph and name of every kernel that a process runs to $KERNEL_TIMES.PID.
// The CUDA driver loads this library through CUDA_INJECTION64_PATH; bench/kernel_times.py builds and uses it.
#include <cuda.h>
#include <cupti.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static FILE* out;

static void CUPTIAPI give_buffer(uint8_t** buffer, size_t* size, size_t* max_records) {
  *size = 16 << 20;
  *buffer = aligned_alloc(64, *size);
  *max_records = 0;
}

static void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t* buffer, size_t size, size_t valid) {
  (void)context, (void)stream, (void)size;
  CUpti_Activity* record = NULL;
  while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
    const CUpti_ActivityKernel10* k = (const CUpti_ActivityKernel10*)record;
    fprintf(out, "%llu %llu %d %u %s\n", (unsigned long long)k->start, (unsigned long long)k->end,
            k->gridX * k->gridY * k->gridZ, k->graphId, k->name);
  }
  free(buffer);
}

static void finish(void) {
  cuptiActivityFlushAll(1);
  fclose(out);
}

int InitializeInjection(void) {
  char name[256];
  snprintf(name, sizeof name, "%s.%d", getenv("KERNEL_TIMES"), (int)getpid());
  out = fopen(name, "w");
  if (out == NULL) return 0;
  cuptiActivityRegisterCallbacks(give_buffer, take_buffer);
  cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  atexit(finish);
  return 1;
}
