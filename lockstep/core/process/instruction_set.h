// SPDX-License-Identifier: BSD-3-Clause
// Compiles a loop for several instruction sets, and chooses one at run time. Results are the same
// in all of them if the file is compiled with -ffp-contract=off, as the project's are.
#pragma once

namespace lockstep {

// Before a loop whose iterations are independent of each other, even if the memory that it writes
// is also memory that it reads.
#if defined(__clang__)
#define LOCKSTEP_INDEPENDENT_ELEMENTS _Pragma("clang loop vectorize(assume_safety)")
#else
#define LOCKSTEP_INDEPENDENT_ELEMENTS _Pragma("GCC ivdep")
#endif

// With a sanitizer, only the baseline: the loops are the same, and the other sets take half a
// minute more to compile.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define LOCKSTEP_SEVERAL_INSTRUCTION_SETS
#endif

namespace detail {

#if defined(LOCKSTEP_SEVERAL_INSTRUCTION_SETS)
template <class Loop>
[[gnu::target("avx2")]] void run_with_avx2(const Loop& loop) {
  loop();
}

#if defined(__clang__)  // clang has no option for the preferred width here
#define LOCKSTEP_AVX512 "avx512f,avx512bw,avx512dq,avx512vl"
#else
#define LOCKSTEP_AVX512 "avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512"
#endif

template <class Loop>
[[gnu::target(LOCKSTEP_AVX512)]] void run_with_avx512(const Loop& loop) {
  loop();
}

enum class InstructionSet { baseline, avx2, avx512 };

inline InstructionSet best_instruction_set() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return InstructionSet::avx512;
  }
  return __builtin_cpu_supports("avx2") ? InstructionSet::avx2 : InstructionSet::baseline;
}
#endif

}  // namespace detail

// Runs a loop with the widest vectors that this processor has. The loop's operator() must be
// [[gnu::always_inline]], since it is compiled into a function for each instruction set.
template <class Loop>
void run_vectorized(const Loop& loop) {
#if defined(LOCKSTEP_SEVERAL_INSTRUCTION_SETS)
  static const detail::InstructionSet best = detail::best_instruction_set();
  if (best == detail::InstructionSet::avx512) return detail::run_with_avx512(loop);
  if (best == detail::InstructionSet::avx2) return detail::run_with_avx2(loop);
#endif
  loop();
}

}  // namespace lockstep
