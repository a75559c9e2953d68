#pragma once

/// Sums of all sizes over `world` GPUs, a process each, checked and timed inside a graph; what to
/// exit with: 77 where there are fewer.
int sums_over_gpus(int world);
