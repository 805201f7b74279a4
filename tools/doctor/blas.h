// SPDX-License-Identifier: BSD-3-Clause
// The library of basic linear algebra that libtorch's matrix products end in: the slowest one
// takes 25 times as long as the others, and nothing else would show it.
#pragma once

#include <string>

#include "tools/doctor/finding.h"

namespace lockstep {

struct Blas {
  // What it says of itself; empty if it is none of those that are known to be fast.
  std::string name;
  // Empty if it cannot be told.
  std::string file;
};

// The one that is loaded with libtorch.
Blas find_blas();

// Billions of operations a second in a product of float matrices, with all of its threads.
// Takes 30 ms with the slowest library.
double measure_product();

Finding judge_blas(const Blas& blas, double gflops);

}  // namespace lockstep
