// SPDX-License-Identifier: BSD-3-Clause
// `lockstep bench` as a user runs it.
#include "support/program.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
using Json = nlohmann::json;
using testing::Program;

std::vector<std::string> names(const Json& fields) {
  std::vector<std::string> names;
  for (const auto& [name, value] : fields.items()) names.push_back(name);
  return names;
}

TEST(BenchCommand, PrintsARowForEachSize) {
  Program program({LOCKSTEP_PROGRAM, "bench", "all-reduce", "--ranks", "2", "--sizes", "1KiB,1MiB",
                   "--dtype", "bfloat16", "--op", "mean"});
  EXPECT_EQ(program.wait(), 0) << program.err();
  EXPECT_THAT(program.out(), HasSubstr("all_reduce of bfloat16, mean, 2 ranks"));
  for (const char* column :
       {"bytes", "min us", "median us", "algbw GB/s", "busbw GB/s", "#wrong", "of bound"}) {
    EXPECT_THAT(program.out(), HasSubstr(column));
  }
  EXPECT_THAT(program.out(), HasSubstr("\n        1024 "));
  EXPECT_THAT(program.out(), HasSubstr("\n     1048576 "));
}

TEST(BenchCommand, PrintsOneObject) {
  for (const std::string verb : {"all-reduce", "all-gather", "broadcast", "reduce-scatter"}) {
    Program program({LOCKSTEP_PROGRAM, "bench", verb, "--ranks", "2", "--sizes", "4096",
                     "--ordinary", "--json"});
    EXPECT_EQ(program.wait(), 0) << program.err();
    const auto json = Json::parse(program.out());
    EXPECT_EQ(json["ranks"], 2);
    EXPECT_EQ(json["ordinary"], true);
    const auto& row = json["rows"].at(0);
    EXPECT_EQ(row["bytes"], 4096) << verb;
    EXPECT_EQ(row["wrong"], 0) << verb;
    EXPECT_THAT(names(row),
                UnorderedElementsAre("bytes", "time_us_min", "time_us_median", "algbw_gb_s",
                                     "busbw_gb_s", "wrong", "percent_of_bound"));
    for (const char* field :
         {"time_us_min", "time_us_median", "algbw_gb_s", "busbw_gb_s", "percent_of_bound"}) {
      EXPECT_GT(row[field], 0) << verb << field;
    }
  }
}

TEST(BenchCommand, FailsIfItsOutputIsLost) {
  for (const std::string arguments : {"all-reduce --ranks 2 --sizes 1KiB", "--help"}) {
    Program program({"sh", "-c", LOCKSTEP_PROGRAM " bench " + arguments + " >/dev/full"});
    EXPECT_EQ(program.wait(), 1) << arguments;
    EXPECT_THAT(program.err(), HasSubstr("cannot write standard output: No space left on device"));
  }
}

TEST(BenchCommand, OneRankHasNoBound) {
  const std::vector<std::string> command{LOCKSTEP_PROGRAM, "bench", "all-reduce", "--ranks", "1",
                                         "--sizes",        "4KiB"};
  Program table(command);
  EXPECT_EQ(table.wait(), 0) << table.err();
  EXPECT_THAT(table.out(), HasSubstr(" -\n"));
  std::vector<std::string> with_json = command;
  with_json.emplace_back("--json");
  Program json(with_json);
  EXPECT_EQ(json.wait(), 0) << json.err();
  EXPECT_TRUE(Json::parse(json.out())["rows"].at(0)["percent_of_bound"].is_null());
}

TEST(BenchCommand, RefusesSizesThatDoNotFitInMemory) {
  Program program({LOCKSTEP_PROGRAM, "bench", "all-reduce", "--ranks", "2", "--sizes", "1TiB"});
  EXPECT_EQ(program.wait(), 1);
  EXPECT_THAT(program.err(), HasSubstr("choose smaller --sizes or fewer --ranks"));
}

TEST(BenchCommand, MeasuresSteps) {
  Program program({LOCKSTEP_PROGRAM, "bench", "step", "linear", "--ranks", "2", "--json"});
  EXPECT_EQ(program.wait(), 0) << program.err();
  const auto json = Json::parse(program.out());
  std::vector<std::string> modes;
  for (const auto& row : json["rows"]) {
    modes.push_back(row["mode"]);
    EXPECT_THAT(names(row),
                UnorderedElementsAre("model", "optimizer", "amp", "mode", "comm_hook", "ranks",
                                     "us_p10", "us_median", "us_p90", "peak_mb"));
    EXPECT_EQ(row["optimizer"], "torch");
    EXPECT_EQ(row["model"], "linear");
    EXPECT_EQ(row["ranks"], row["mode"] == "single" ? 1 : 2);
    for (const char* field : {"us_p10", "us_median", "us_p90", "peak_mb"}) {
      EXPECT_GT(row[field], 0) << field;
    }
  }
  EXPECT_EQ(modes, (std::vector<std::string>{"single", "floor", "ddp"}));
}

TEST(BenchCommand, MeasuresStepsWithEachOptimizer) {
  Program program({LOCKSTEP_PROGRAM, "bench", "step", "linear", "--ranks", "2", "--optimizer",
                   "fused,sharded,one-copy"});
  EXPECT_EQ(program.wait(), 0) << program.err();
  for (const char* optimizer : {"fused", "sharded", "one-copy"}) {
    EXPECT_THAT(program.out(),
                ::testing::ContainsRegex(std::string("\n") + optimizer + " +none +ddp +none +2 "));
  }
}

TEST(BenchCommand, MeasuresStepsWithEachCommHook) {
  Program program({LOCKSTEP_PROGRAM, "bench", "step", "linear", "--ranks", "2", "--comm-hook",
                   "none,power_sgd", "--json"});
  EXPECT_EQ(program.wait(), 0) << program.err();
  const auto json = Json::parse(program.out());
  std::vector<std::string> hooks;
  for (const auto& row : json["rows"]) {
    if (row["mode"] == "ddp") hooks.push_back(row["comm_hook"]);
  }
  EXPECT_EQ(hooks, (std::vector<std::string>{"none", "power_sgd"}));
}

TEST(BenchCommand, MeasuresReplicas) {
  Program program(
      {LOCKSTEP_PROGRAM, "bench", "dp", "linear", "--ranks", "2", "--batch-size", "8", "--json"});
  EXPECT_EQ(program.wait(), 0) << program.err();
  const auto json = Json::parse(program.out());
  EXPECT_EQ(json["batch_size"], 8);
  std::vector<std::string> modes;
  for (const auto& row : json["rows"]) {
    modes.push_back(row["mode"]);
    EXPECT_GT(row["us_median"], 0);
  }
  EXPECT_EQ(modes, (std::vector<std::string>{"single", "single", "dp"}));
  EXPECT_EQ(json["rows"][1]["threads"], 2);
  EXPECT_EQ(json["rows"][2]["replicas"], 2);
}

TEST(BenchCommand, IsARankUnderALauncher) {
  Program program({LOCKSTEP_PROGRAM, "run", "-n", "2", "--threads", "1", "--no-prefix",
                   LOCKSTEP_PROGRAM, "bench", "all-reduce", "--sizes", "1KiB", "--backend", "shm",
                   "--json"});
  EXPECT_EQ(program.wait(), 0) << program.err();
  EXPECT_EQ(nlohmann::json::parse(program.out())["ranks"], 2);
}

TEST(BenchCommand, NamesTheGpuThatIsMissing) {
  for (const std::string verb : {"step", "dp"}) {
    Program program({LOCKSTEP_PROGRAM, "bench", verb, "linear", "--device", "cuda:99"});
    EXPECT_EQ(program.wait(), 1);
    EXPECT_THAT(program.err(), HasSubstr("cuda:99"));
  }
}

TEST(BenchCommand, RefusesWrongUse) {
  struct Case {
    std::vector<std::string> arguments;
    std::string message;
  };
  const std::vector<Case> wrong{
      {{"bench"}, "subcommand"},
      {{"bench", "step", "resnet1000"},
       "choose one of linear, mlp, cnn, mlp25m, mlp25m-adam, resnet18, resnet50"},
      {{"bench", "dp", "mlp", "--ranks", "1"}, "--ranks \"1\": give a whole number from 2 to"},
      {{"bench", "step", "mlp", "--device", "tpu"}, "tpu"},
      {{"bench", "step", "mlp", "--optimizer", "sgd"}, "--optimizer \"sgd\": give torch, fused"},
      {{"bench", "step", "mlp", "--amp", "int8"}, "--amp \"int8\": give none, bf16, fp16"},
      {{"bench", "step", "mlp", "--comm-hook", "int8"}, "--comm-hook \"int8\": give none, fp16"},
      {{"bench", "dp", "mlp", "--batch-size", "0"},
       "--batch-size \"0\": give a whole number from 1 to"},
      {{"bench", "all-reduce", "--dtype", "complex"}, "complex"},
      {{"bench", "all-reduce", "--op", "mean", "--dtype", "int32"}, "mean"},
      {{"bench", "reduce-scatter", "--algorithm", "ring"},
       "the ring is an algorithm of all-reduce"},
      {{"bench", "all-reduce", "--ranks", "0"}, "--ranks \"0\": give a whole number from 1 to"},
      {{"bench", "all-reduce", "--sizes", "huge"}, "huge"},
      {{"bench", "all-reduce", "--sizes", "1KiB,0"}, "give 1 byte to 1 TiB"},
      {{"bench", "all-reduce", "--sizes", "-5"}, "give 1 byte to 1 TiB"},
      {{"bench", "all-reduce", "--sizes", "8EiB"}, "give 1 byte to 1 TiB"},
      {{"bench", "all-reduce", "--sizes", "0x10"}, "give 1 byte to 1 TiB"},
      {{"bench", "all-reduce", "--sizes", "99999999999999999999"}, "give 1 byte to 1 TiB"},
      {{"bench", "all-reduce", "--sizes", "18014398509481985KiB"}, "give 1 byte to 1 TiB"},
      {{"bench", "all-reduce", "--sizes", "1,,2"}, "--sizes \"\": give 1 byte to 1 TiB"},
      {{"bench", "broadcast", "--op", "max"}, "broadcast is not a reduction; remove --op max"},
      {{"bench", "all-reduce", "--ranks", "2000000000"},
       "--ranks \"2000000000\": give a whole number from 1 to 32768"},
      {{"bench", "all-reduce", "--timeout", "0"},
       "--timeout \"0\": give a number from 0.001 to 1000000000"},
      {{"bench", "step", "linear", "--timeout", "soon"}, "--timeout \"soon\": give a number"},
      {{"run", "-n", "2", "--no-prefix", LOCKSTEP_PROGRAM, "bench", "dp", "mlp"},
       "bench dp starts its own ranks"},
      {{"run", "-n", "2", "--no-prefix", LOCKSTEP_PROGRAM, "bench", "all-reduce", "--ranks", "2"},
       "--ranks 2: a launcher has started the ranks already"}};
  for (auto [arguments, message] : wrong) {
    arguments.insert(arguments.begin(), LOCKSTEP_PROGRAM);
    Program program(arguments);
    EXPECT_EQ(program.wait(), 2) << message;
    EXPECT_THAT(program.err(), HasSubstr(message));
  }
}

}  // namespace
}  // namespace lockstep
