// SPDX-License-Identifier: BSD-3-Clause
// A program that is linked to MPI and starts it itself: its groups must use the same MPI. mpirun
// starts it as every rank. Exit code 0 if all is well; otherwise it says what is not.
#include <cstdio>
#include <exception>

#include <ATen/ATen.h>
#include <mpi.h>

#include "lockstep/comm/init_process_group.h"
#include "lockstep/comm/process_group.h"

int main() try {
  int level = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level);
  int rank = -1;
  int size = -1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  bool right = false;
  {
    const auto group = lockstep::init_process_group({.backend = "mpi"});
    const at::Tensor ranks = at::full({3}, group->rank());
    group->all_reduce(ranks).wait();
    right = group->rank() == rank && group->size() == size &&
            ranks.sum().item<int>() == 3 * size * (size - 1) / 2;
  }
  MPI_Finalize();
  if (!right) std::fprintf(stderr, "rank %d of %d: the group or its sum is wrong\n", rank, size);
  return right ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
