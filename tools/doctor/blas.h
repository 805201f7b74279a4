// SPDX-License-Identifier: BSD-3-Clause
// Finds the BLAS that libtorch's matrix products use: the slowest one takes 25 times as long as the
// others, and nothing else would show it.
#pragma once

#include <string>

#include "tools/doctor/finding.h"

namespace lockstep {

struct Blas {
  // The name that it reports; empty if it is not a known fast library.
  std::string name;
  // Empty if unknown.
  std::string file;
};

// The library that is loaded with libtorch.
Blas find_blas();

// GFLOP/s of a product of float matrices, with all of the library's threads. Takes 30 ms with the
// slowest library.
double measure_product();

Finding judge_blas(const Blas& blas, double gflops);

}  // namespace lockstep
