// SPDX-License-Identifier: BSD-3-Clause
// The whole diagnosis, as text and as JSON.
#include "tools/doctor/diagnosis.h"

#include <map>

#include "support/private_tmpdir.h"
#include "support/process_table.h"
#include "support/rank_processes.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <stdlib.h>
#include <sys/wait.h>

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;
using Json = nlohmann::ordered_json;
using State = Finding::State;

Diagnosis some_diagnosis() {
  return {{{.topic = "blas", .found = "fast"},
           {.topic = "backend gloo", .state = State::note, .found = "absent", .advice = "use shm"},
           {.topic = "environment", .state = State::broken, .found = "RANK=\xff", .advice = "no"}}};
}

std::vector<std::string> topics(const Diagnosis& diagnosis) {
  std::vector<std::string> names;
  for (const auto& finding : diagnosis.findings) names.push_back(finding.topic);
  return names;
}

TEST(Diagnosis, IsTextForPeople) {
  EXPECT_THAT(to_text(some_diagnosis()), AllOf(HasSubstr("\n\n"
                                                         "ok      blas          fast\n"
                                                         "note    backend gloo  absent\n"
                                                         "                      -> use shm\n"
                                                         "broken  environment   RANK="),
                                               EndsWith("\n\nbroken: environment\n")));
  EXPECT_THAT(to_text({}), EndsWith("\nnothing is broken\n"));
}

TEST(Diagnosis, IsJsonWhateverTheEnvironmentHolds) {
  const Json json = Json::parse(to_json(some_diagnosis()));
  EXPECT_EQ(json["schema_version"], 1);
  EXPECT_TRUE(json["versions"].contains("lockstep"));
  EXPECT_EQ(json["broken"], true);
  EXPECT_EQ(json["findings"][0].dump(), R"({"topic":"blas","state":"ok","found":"fast"})");
  EXPECT_EQ(json["findings"][1].dump(),
            R"({"topic":"backend gloo","state":"note","found":"absent","advice":"use shm"})");
  EXPECT_EQ(json["findings"][2]["state"], "broken");
}

TEST(Diagnosis, LooksAtEverythingAndLeavesNothingBehind) {
  testing::run_ranks(1, [](testing::Rank&) {
    const testing::PrivateTmpdir tmpdir;
    const int descriptors = testing::count_descriptors();
    const Diagnosis diagnosis = diagnose();
    EXPECT_THAT(topics(diagnosis),
                ElementsAre("libtorch", "blas", "cores", "cgroup", "threads", "memory",
                            "backend shm", "backend thread", "backend self", "backend gloo",
                            "backend mpi", "backend nccl", "gpus", "environment", "backend auto"));
    EXPECT_FALSE(diagnosis.broken()) << to_text(diagnosis);
    EXPECT_THAT(tmpdir.entries(), IsEmpty());
    EXPECT_EQ(testing::count_descriptors(), descriptors);
    EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
  });
}

TEST(Diagnosis, ABrokenPartDoesNotEndTheOthers) {
  testing::run_ranks(1, [](testing::Rank&) {
    ::setenv("TMPDIR", "/absent", 1);
    ::setenv("PMI_RANK", "first", 1);
    std::map<std::string, std::string> broken;
    const Diagnosis diagnosis = diagnose();
    for (const auto& finding : diagnosis.findings) {
      EXPECT_EQ(finding.advice.empty(), finding.state == State::ok) << finding.topic;
      if (finding.state == State::broken) broken[finding.topic] = finding.found;
    }
    EXPECT_THAT(broken, UnorderedElementsAre(Pair("backend shm", HasSubstr("TMPDIR")),
                                             Pair("backend gloo", HasSubstr("TMPDIR")),
                                             Pair("environment", HasSubstr("PMI_RANK"))));
  });
}

}  // namespace
}  // namespace lockstep
