// SPDX-License-Identifier: BSD-3-Clause
// MPI's library is loaded when it is used, and its absence is an error that says what to install.
#include "lockstep/rendezvous/mpi_library.h"

#include <filesystem>
#include <string_view>

#include "comm/conformance/expect_error.h"
#include "support/environment.h"
#include "support/program.h"
#include "support/rank_processes.h"
#include <gmock/gmock.h>
#include <link.h>
#include <stdlib.h>

#include "lockstep/comm/init_process_group.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::Not;

bool mpi_is_loaded() {
  const auto is_mpi = [](dl_phdr_info* library, std::size_t, void*) {
    return std::string_view(library->dlpi_name).find("/libmpi") == std::string_view::npos ? 0 : 1;
  };
  return ::dl_iterate_phdr(is_mpi, nullptr) != 0;
}

const std::vector<std::string> kHowToGetIt = {
    "MPI cannot be loaded: /nowhere/libmpi.so: cannot open shared object file",
    "apt-get install openmpi-bin .*mpich", "LOCKSTEP_MPI_LIBRARY"};

// Some libtorches are, through a library that they use.
TEST(MpiLibrary, IsNotLinkedButLoadedWhenItIsUsed) {
  run_ranks(1, [](Rank&) {
    Program reader({"readelf", "-d", std::filesystem::read_symlink("/proc/self/exe")});
    EXPECT_EQ(reader.wait(), 0);
    EXPECT_THAT(reader.out(), HasSubstr("libtorch"));
    EXPECT_THAT(reader.out(), Not(HasSubstr("libmpi")));
    EXPECT_NE(MpiLibrary::version(), "");
    EXPECT_TRUE(mpi_is_loaded());
  });
}

TEST(MpiLibrary, ItsAbsenceSaysWhatToInstall) {
  run_ranks(2, [](Rank& rank) {
    set_launcher_environment({});
    ::setenv("LOCKSTEP_MPI_LIBRARY", "/nowhere/libmpi.so", 1);
    InitOptions options{.backend = "mpi", .init_method = rank.rendezvous_url()};
    options.rank = rank.rank();
    options.world_size = 2;
    options.timeout = 30s;
    expect_error<BackendError>("no MPI", kHowToGetIt, [&] { init_process_group(options); });
  });
}

TEST(MpiLibrary, ItsAbsenceUnderMpirunAlsoSaysHowToJoinWithoutIt) {
  run_ranks(1, [](Rank&) {
    set_launcher_environment({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}});
    ::setenv("LOCKSTEP_MPI_LIBRARY", "/nowhere/libmpi.so", 1);
    auto expected = kHowToGetIt;
    expected.insert(expected.end(), {"^mpirun started this rank", "MASTER_ADDR", "MASTER_PORT"});
    expect_error<BackendError>("no MPI", expected, [] { init_process_group({.timeout = 5s}); });
  });
}

TEST(MpiLibrary, AnythingElseIsRefused) {
  run_ranks(1, [](Rank&) {
    ::setenv("LOCKSTEP_MPI_LIBRARY", "libc.so.6", 1);
    expect_error<BackendError>("not an MPI",
                               {"has no MPI_", "built with libmpi", "LOCKSTEP_MPI_LIBRARY"},
                               [] { MpiLibrary::load(); });
  });
}

}  // namespace
}  // namespace lockstep::testing
