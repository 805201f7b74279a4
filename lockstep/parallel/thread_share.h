// SPDX-License-Identifier: BSD-3-Clause
// Limits the intra-op threads of libtorch's kernels while other threads compute, too. libtorch's
// own set_num_threads would also affect every thread that starts later.
#pragma once

namespace lockstep {

// For the calling thread, while this object lives: its OpenMP regions, and MKL.
class ThreadShare {
 public:
  explicit ThreadShare(int threads);
  ~ThreadShare();
  ThreadShare(const ThreadShare&) = delete;
  ThreadShare& operator=(const ThreadShare&) = delete;

 private:
  int threads_;
  int threads_before_;
  int mkl_before_ = 0;
};

// For OpenBLAS in all threads, while any such object lives: OpenBLAS has only one number per
// process, and with more than one thread it computes one product after another.
class BlasShare {
 public:
  explicit BlasShare(int threads);
  ~BlasShare();
  BlasShare(const BlasShare&) = delete;
  BlasShare& operator=(const BlasShare&) = delete;
};

}  // namespace lockstep
