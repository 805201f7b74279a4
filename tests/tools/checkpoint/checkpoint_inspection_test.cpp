// SPDX-License-Identifier: BSD-3-Clause
// What is printed about checkpoints, and which of them are called damaged.
#include "tools/checkpoint/checkpoint_inspection.h"

#include <fstream>
#include <vector>

#include "support/temporary_folder.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "lockstep/checkpoint/checkpoint_store.h"
#include "lockstep/checkpoint/safetensors/safetensors_layout.h"
#include "lockstep/checkpoint/tensor_file/tensor_bytes.h"
#include "lockstep/core/error.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using testing::TemporaryFolder;
using ::testing::ThrowsMessage;

json manifest_of(std::int64_t step) {
  return {{"format", "lockstep checkpoint"},
          {"version", 1},
          {"lockstep", "0.9"},
          {"libtorch", "2.0"},
          {"ranks", 3},
          {"position",
           {{"step", step},
            {"epoch", 1},
            {"samples_consumed", 24},
            {"samples", 100},
            {"seed", 0},
            {"notes", {{"mood", "good"}}}}},
          {"score", 0.5},
          {"files", json::object()}};
}

// With one file of two floats.
fs::path write(const fs::path& folder, std::int64_t step, const json& manifest) {
  const std::vector<float> elements{1, 2};
  const auto layout = lay_out_safetensors({{"weight", find_element_type(at::kFloat), {2}}}, {});
  CheckpointStore store(folder, 10, 0);
  store.write(step, {}, manifest,
              {{"model.safetensors",
                {std::as_bytes(std::span(layout.head)), std::as_bytes(std::span(elements))}}});
  return folder / checkpoint_name(step);
}

fs::path write(const fs::path& folder, std::int64_t step) {
  return write(folder, step, manifest_of(step));
}

void damage(const fs::path& file) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(-1, std::ios::end);
  stream.put('x');
}

TEST(CheckpointInspection, ListsThePositionTheFilesAndTheirTensors) {
  const TemporaryFolder folder;
  const fs::path checkpoint = write(folder.path(), 7);
  EXPECT_THAT(checkpoint_text(checkpoint),
              AllOf(HasSubstr("step-000000000007: checkpoint of step 7\n"),
                    HasSubstr("epoch 1 (from 0), 24 of 100 samples\n"),
                    HasSubstr("saved by 3 ranks, with Lockstep \"0.9\" and libtorch \"2.0\"\n"),
                    HasSubstr("score 0.5\nnote \"mood\": \"good\"\n"),
                    HasSubstr("\n\"model.safetensors\"\nname"), HasSubstr("\"weight\"  float32"),
                    HasSubstr("1 tensors, 2 elements, 8 bytes\n")));
  const json described = json::parse(checkpoint_json(checkpoint));
  EXPECT_EQ(described["manifest"]["position"]["step"], 7);
  const json& file = described["files"].at(0);
  EXPECT_EQ(file["name"], "model.safetensors");
  EXPECT_EQ(file["bytes"], fs::file_size(checkpoint / "model.safetensors"));
  EXPECT_EQ(file["sha256"], described["manifest"]["files"]["model.safetensors"]["sha256"]);
  EXPECT_EQ(file["tensors"].at(0)["name"], "weight");
}

TEST(CheckpointInspection, ListsTheNumbersOfScalerAndScheduler) {
  const TemporaryFolder folder;
  json manifest = manifest_of(1);
  manifest["scaler"] = {{"scale", 1024.0}};
  manifest["scheduler"] = {{"base", 0.1}, {"initial_lr.0", 0.01}};
  const fs::path checkpoint = write(folder.path(), 1, manifest);
  EXPECT_THAT(checkpoint_text(checkpoint),
              HasSubstr("\nscaler \"scale\": 1024.0\nscheduler \"base\": 0.1\n"
                        "scheduler \"initial_lr.0\": 0.01\n"));
  EXPECT_EQ(json::parse(checkpoint_json(checkpoint))["manifest"]["scheduler"],
            manifest["scheduler"]);
  manifest["scaler"] = manifest["scheduler"] = {};
  EXPECT_THAT(checkpoint_text(write(folder.path(), 2, manifest)), Not(HasSubstr("sch")));
}

TEST(CheckpointInspection, FindsTheNewestOfAFolder) {
  const TemporaryFolder folder;
  write(folder.path(), 9);
  const fs::path newest = write(folder.path(), 11);
  EXPECT_EQ(find_checkpoint(folder.path()), newest);
  EXPECT_EQ(find_checkpoint(newest), newest);
  EXPECT_EQ(find_checkpoint(folder.path() / "latest"), folder.path() / "latest");
  const TemporaryFolder other;
  EXPECT_THAT([&] { find_checkpoint(other.path()); },
              ThrowsMessage<UsageError>(HasSubstr("neither a manifest.json nor folders such as")));
}

TEST(CheckpointInspection, VerifiesEachCheckpointOfAFolder) {
  const TemporaryFolder folder;
  write(folder.path(), 1);
  damage(write(folder.path(), 2) / "model.safetensors");
  fs::remove(write(folder.path(), 3) / "manifest.json");
  const auto verdicts = verify_checkpoints(folder.path());
  ASSERT_THAT(verdicts, SizeIs(3));
  EXPECT_TRUE(verdicts[0].is_damaged);
  EXPECT_THAT(verdicts[0].text, HasSubstr("manifest.json: there is no such file"));
  EXPECT_TRUE(verdicts[1].is_damaged);
  EXPECT_THAT(verdicts[1].text, HasSubstr("model.safetensors is damaged: its SHA-256"));
  EXPECT_FALSE(verdicts[2].is_damaged);
  EXPECT_EQ(verdicts[2].text, "1 files, 1 tensors, nothing is wrong");
  EXPECT_THAT(verify_checkpoints(folder.path() / checkpoint_name(1)), SizeIs(1));
}

TEST(CheckpointInspection, NamesWhatAnIncompleteManifestLacks) {
  const TemporaryFolder folder;
  json manifest = manifest_of(1);
  manifest["position"].erase("epoch");
  const fs::path checkpoint = write(folder.path(), 1, manifest);
  EXPECT_THAT([&] { checkpoint_text(checkpoint); },
              ThrowsMessage<CheckpointError>(
                  AllOf(HasSubstr("its manifest is incomplete"), HasSubstr("epoch"))));
}

TEST(CheckpointInspection, SaysARankOfOne) {
  const TemporaryFolder folder;
  json manifest = manifest_of(1);
  manifest["ranks"] = 1;
  EXPECT_THAT(checkpoint_text(write(folder.path(), 1, manifest)),
              HasSubstr("saved by 1 rank, with"));
}

TEST(CheckpointInspection, ComparesAllFilesOfTwoCheckpoints) {
  const TemporaryFolder folder;
  const fs::path first = write(folder.path(), 1);
  const fs::path second = write(folder.path(), 2);
  EXPECT_THAT(checkpoint_differences(first, second), SizeIs(0));
  // Its last byte is the highest of the last element.
  damage(second / "model.safetensors");
  const auto found = checkpoint_differences(first, folder.path());
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].name, "model.safetensors: weight");
  EXPECT_EQ(found[0].differing, 1);
}

TEST(CheckpointInspection, AMissingFileIsDamage) {
  const TemporaryFolder folder;
  const fs::path checkpoint = write(folder.path(), 1);
  fs::remove(checkpoint / "model.safetensors");
  EXPECT_THROW(checkpoint_text(checkpoint), CheckpointError);
  EXPECT_THROW(checkpoint_json(checkpoint), CheckpointError);
}

}  // namespace
}  // namespace lockstep
