// at::set_num_threads, from torch or from its stand-in: the one torch header of the kernel tests.
#pragma once

#include <ATen/Parallel.h>
