// SPDX-License-Identifier: BSD-3-Clause
// How many intra-op threads libtorch's kernels use in one thread, while others compute beside it.
// libtorch's own set_num_threads would change what every thread that starts later gets.
#pragma once

namespace lockstep {

// Of the calling thread, while this lives: its OpenMP regions, and MKL.
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

// Of OpenBLAS in all threads, while any of these lives: it knows but one number for the process,
// and with more than one thread it computes one product after another, whoever asks.
class BlasShare {
 public:
  explicit BlasShare(int threads);
  ~BlasShare();
  BlasShare(const BlasShare&) = delete;
  BlasShare& operator=(const BlasShare&) = delete;
};

}  // namespace lockstep
