// SPDX-License-Identifier: BSD-3-Clause
// Tests that are started by hand run with one thread, as under ctest: beside threads of OpenMP and
// OpenBLAS, forked ranks hang. Both libraries read the variables when they are loaded, before any
// code of the program, which therefore starts itself anew.
#include <cstring>

#include <stdlib.h>
#include <unistd.h>

namespace {

__attribute__((constructor)) void start_with_one_thread(int argc, char** argv) {
  if (::getenv("OMP_NUM_THREADS") != nullptr) return;
  for (int i = 1; i < argc; ++i) {  // the build lists the tests of each program
    if (std::strcmp(argv[i], "--gtest_list_tests") == 0) return;
  }
  ::setenv("OMP_NUM_THREADS", "1", /*overwrite=*/1);
  ::setenv("OPENBLAS_NUM_THREADS", "1", /*overwrite=*/0);
  ::execv("/proc/self/exe", argv);  // without /proc, the tests run as they are
}

}  // namespace
