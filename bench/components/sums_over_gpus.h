#pragma once

/// Checks and times all-reduces of all sizes over `world` GPUs inside a graph, with one process for
/// each GPU. Returns the exit status of the program: 77 if there are fewer GPUs.
int sums_over_gpus(int world);
