// SPDX-License-Identifier: BSD-3-Clause
// `lockstep doctor` as a user runs it.
#include <algorithm>

#include "support/environment.h"
#include "support/private_tmpdir.h"
#include "support/process_table.h"
#include "support/program.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <stdlib.h>

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using Json = nlohmann::json;
using testing::Ended;
using testing::Program;

class DoctorCommand : public ::testing::Test {
 protected:
  DoctorCommand() {
    testing::set_launcher_environment({});
    ::setenv("LOCKSTEP_TEST_MARK", mark.c_str(), 1);
  }
  ~DoctorCommand() override {
    EXPECT_TRUE(testing::eventually([&] { return testing::count_marked(mark) == 0; }));
    EXPECT_THAT(tmpdir.entries(), IsEmpty());
    ::unsetenv("LOCKSTEP_TEST_MARK");
  }

  const testing::PrivateTmpdir tmpdir;
  const std::string mark = testing::unique_mark();
};

// With settings of the environment as for env(1).
Ended doctor(const std::vector<std::string>& settings = {},
             const std::vector<std::string>& options = {}) {
  std::vector<std::string> arguments{"env"};
  arguments.insert(arguments.end(), settings.begin(), settings.end());
  arguments.insert(arguments.end(), {LOCKSTEP_PROGRAM, "doctor"});
  arguments.insert(arguments.end(), options.begin(), options.end());
  return testing::run_to_end(arguments);
}

Json finding(const Json& diagnosis, const std::string& topic) {
  for (const auto& found : diagnosis["findings"]) {
    if (found["topic"] == topic) return found;
  }
  return {};
}

TEST_F(DoctorCommand, FindsAMachineThatWorks) {
  const Ended ended = doctor();
  EXPECT_EQ(ended.code, 0) << ended.out;
  EXPECT_THAT(ended.out, AllOf(StartsWith("Lockstep "), HasSubstr("ok      backend shm"),
                               HasSubstr("GFLOP/s"), EndsWith("\nnothing is broken\n")));
  EXPECT_EQ(ended.err, "");
}

// Not what lockstep sets for the programs that it starts.
TEST_F(DoctorCommand, ShowsTheUsersEnvironment) {
  const Json json = Json::parse(doctor({"-u", "OMP_WAIT_POLICY"}, {"--json"}).out);
  EXPECT_THAT(finding(json, "threads")["found"].get<std::string>(),
              HasSubstr("OMP_WAIT_POLICY is not set (`lockstep run` sets it to passive"));
  EXPECT_THAT(finding(json, "cores")["found"].get<std::string>(), EndsWith(" idle"));
}

TEST_F(DoctorCommand, PrintsOneObject) {
  const Ended ended = doctor({}, {"--json"});
  EXPECT_EQ(ended.code, 0) << ended.out;
  EXPECT_EQ(std::ranges::count(ended.out, '\n'), 1);
  const Json json = Json::parse(ended.out);
  EXPECT_EQ(json["schema_version"], 1);
  EXPECT_EQ(json["broken"], false);
  EXPECT_EQ(json["findings"].size(), 15u);
  EXPECT_EQ(finding(json, "backend shm")["state"], "ok");
  EXPECT_EQ(ended.err, "");
}

TEST_F(DoctorCommand, ABrokenEnvironmentIsExitCodeOneAndNamed) {
  const std::vector<std::vector<std::string>> broken = {
      {"RANK=0"},
      {"WORLD_SIZE=2x"},
      {"MASTER_PORT=29500"},
      {"OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=0", "RANK=1", "WORLD_SIZE=2"}};
  for (const auto& settings : broken) {
    const Ended ended = doctor(settings, {"--json"});
    EXPECT_EQ(ended.code, 1) << ended.out;
    const Json json = Json::parse(ended.out);
    EXPECT_EQ(json["broken"], true);
    const Json environment = finding(json, "environment");
    EXPECT_EQ(environment["state"], "broken");
    const std::string variable = settings[0].substr(0, settings[0].find('='));
    EXPECT_THAT(environment.dump(), HasSubstr(variable));
    EXPECT_EQ(finding(json, "backend shm")["state"], "ok") << "it is not the environment's rank";
  }
  EXPECT_THAT(doctor({"RANK=0"}).out, EndsWith("\nbroken: environment\n"));
}

TEST_F(DoctorCommand, TooFewDescriptorsBreakSharedMemory) {
  Program program({"sh", "-c", "ulimit -n 10; exec " LOCKSTEP_PROGRAM " doctor --json"});
  EXPECT_EQ(program.wait(), 1);
  const Json shm = finding(Json::parse(program.out()), "backend shm");
  EXPECT_EQ(shm["state"], "broken");
  EXPECT_THAT(shm["found"].get<std::string>(), HasSubstr("Too many open files"));
}

TEST_F(DoctorCommand, AnAddressSpaceWithoutRoomForTheBlasIsSaidAtOnce) {
  Program program({"sh", "-c", "ulimit -v 900000 && exec \"$0\" doctor --json", LOCKSTEP_PROGRAM});
  const int code = program.wait();
  if (code == 127) GTEST_SKIP() << "this libtorch cannot even be loaded in so little";
  EXPECT_EQ(code, 1);
  const auto error = Json::parse(program.out())["error"];
  EXPECT_EQ(error["kind"], "backend");
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("raise it (ulimit -v) by"));
}

TEST_F(DoctorCommand, AnMpiThatIsNotThereIsANote) {
  const Ended ended = doctor({"LOCKSTEP_MPI_LIBRARY=/nowhere/libmpi.so"}, {"--json"});
  EXPECT_EQ(ended.code, 0) << ended.out;
  const Json mpi = finding(Json::parse(ended.out), "backend mpi");
  EXPECT_EQ(mpi["state"], "note");
  EXPECT_THAT(mpi["found"].get<std::string>(),
              AnyOf("not built", HasSubstr("MPI cannot be loaded: /nowhere/libmpi.so")));
}

TEST_F(DoctorCommand, SeesTheLauncherThatStartedIt) {
  Program program({LOCKSTEP_PROGRAM, "run", "-n", "2", "--local-ranks-filter", "1", "--no-prefix",
                   LOCKSTEP_PROGRAM, "doctor"});
  EXPECT_EQ(program.wait(), 0) << program.out();
  EXPECT_THAT(program.out(), HasSubstr("rank 1 of 2, local rank 1 of 2, by lockstep run"));
}

TEST_F(DoctorCommand, WrongUseIsTwo) {
  for (const std::string wrong : {"--no-such-option", "extra"}) {
    const Ended ended = doctor({}, {wrong});
    EXPECT_EQ(ended.code, 2);
    EXPECT_THAT(ended.err, AllOf(StartsWith("lockstep doctor: "), HasSubstr(wrong)));
  }
}

TEST_F(DoctorCommand, OutputThatIsLostIsAFailure) {
  Program program({"sh", "-c", LOCKSTEP_PROGRAM " doctor >/dev/full"});
  EXPECT_EQ(program.wait(), 1);
  EXPECT_EQ(program.err(),
            "lockstep doctor: cannot write standard output: No space left on device\n");
}

}  // namespace
}  // namespace lockstep
