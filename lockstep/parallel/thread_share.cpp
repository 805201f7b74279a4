// SPDX-License-Identifier: BSD-3-Clause
// Sets thread counts of OpenMP, MKL and OpenBLAS, if they are loaded.
#include "lockstep/parallel/thread_share.h"

#include <mutex>

#include <ATen/Parallel.h>
#include <dlfcn.h>

namespace lockstep {
namespace {

// A function of a library that libtorch may have been built with; null without it.
template <class Function>
Function* find(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

// The lower-case name is Fortran's, which takes an address.
int set_mkl_threads(int threads) {
  static auto* const set = find<int(int)>("MKL_Set_Num_Threads_Local");
  return set ? set(threads) : 0;
}

void set_openmp_threads(int threads) {
  static auto* const set = find<void(int)>("omp_set_num_threads");
  if (set) set(threads);
}

struct OpenBlas {
  void (*set_threads)(int) = find<void(int)>("openblas_set_num_threads");
  int (*threads)() = find<int()>("openblas_get_num_threads");

  bool is_there() const { return set_threads && threads; }
};

const OpenBlas& open_blas() {
  static const OpenBlas library;
  return library;
}

std::mutex blas_shares_mutex;
int blas_shares = 0;
int blas_threads_before = 0;

}  // namespace

// at::get_num_threads also makes libtorch set this thread's number; libtorch does so once, and
// would otherwise do it later.
ThreadShare::ThreadShare(int threads) : threads_(threads), threads_before_(at::get_num_threads()) {
  if (threads_ == threads_before_) return;
  set_openmp_threads(threads_);
  mkl_before_ = set_mkl_threads(threads_);
}

ThreadShare::~ThreadShare() {
  if (threads_ == threads_before_) return;
  set_mkl_threads(mkl_before_);
  set_openmp_threads(threads_before_);
}

BlasShare::BlasShare(int threads) {
  if (!open_blas().is_there()) return;
  const std::lock_guard lock(blas_shares_mutex);
  if (blas_shares++ > 0) return;
  blas_threads_before = open_blas().threads();
  if (threads < blas_threads_before) open_blas().set_threads(threads);
}

BlasShare::~BlasShare() {
  if (!open_blas().is_there()) return;
  const std::lock_guard lock(blas_shares_mutex);
  if (--blas_shares > 0) return;
  if (open_blas().threads() < blas_threads_before) open_blas().set_threads(blas_threads_before);
}

}  // namespace lockstep
