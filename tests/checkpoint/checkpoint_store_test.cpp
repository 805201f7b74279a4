// SPDX-License-Identifier: BSD-3-Clause
// A complete checkpoint is in the folder at any time, whatever interrupts the writing, and damage
// is found.
#include "lockstep/checkpoint/checkpoint_store.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <iterator>

#include "support/kill_at_call.h"
#include "support/limits.h"
#include "support/rank_processes.h"
#include "support/skip_or_fail.h"
#include "support/temporary_folder.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/mount.h>
#include <sys/syscall.h>

#include "lockstep/checkpoint/safetensors/safetensors_layout.h"
#include "lockstep/checkpoint/sha256.h"
#include "lockstep/core/error.h"
#include "lockstep/core/file/remove_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::killed_at_call;
using testing::TemporaryFolder;
using ::testing::ThrowsMessage;

constexpr std::int64_t kElements = 40;

// A checkpoint of two files whose elements are all of one value.
struct Written {
  explicit Written(float value)
      : layout(lay_out_safetensors({{"weight", find_element_type(at::kFloat), {kElements}}}, {})),
        elements(static_cast<std::size_t>(kElements), value) {}

  std::vector<CheckpointFile> files() const {
    const auto head = std::as_bytes(std::span(layout.head));
    const auto data = std::as_bytes(std::span(elements));
    return {{"model.safetensors", {head, data}}, {"optimizer.safetensors", {head, data}}};
  }

  SafetensorsLayout layout;
  std::vector<float> elements;
};

const nlohmann::json kManifest{{"format", "lockstep checkpoint"},
                               {"version", 1},
                               {"score", nullptr},
                               {"files", nlohmann::json::object()}};

// What went wrong after the checkpoint was complete.
std::string written(CheckpointStore& store, std::int64_t step, std::optional<double> score = {}) {
  nlohmann::json manifest = kManifest;
  if (score) manifest["score"] = *score;
  const Written content(static_cast<float>(step));
  return store.write(step, score, manifest, content.files());
}

void write(CheckpointStore& store, std::int64_t step, std::optional<double> score = {}) {
  EXPECT_EQ(written(store, step, score), "");
}

void write(const fs::path& folder, std::int64_t step, int keep_last = 1) {
  CheckpointStore store(folder, keep_last, 0);
  write(store, step);
}

// The step whose content it has.
std::int64_t step_in(const fs::path& checkpoint) {
  const StoredCheckpoint stored = read_checkpoint(checkpoint);
  EXPECT_EQ(stored.tensors.size(), 2u);
  const at::Tensor& model = stored.tensors.at("model.safetensors").at(0).tensor;
  EXPECT_TRUE(at::equal(model, stored.tensors.at("optimizer.safetensors").at(0).tensor));
  EXPECT_TRUE(at::equal(model, at::full_like(model, model[0].item<float>())));
  return model[0].item<std::int64_t>();
}

// Of the newest that is not damaged; -1 if there is none.
std::int64_t newest_step(const fs::path& folder) {
  for (const auto& name : checkpoint_names(folder)) {
    try {
      return step_in(folder / name);
    } catch (const CheckpointError&) {
    }
  }
  return -1;
}

std::vector<std::string> entries(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

std::vector<char> content(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void put(const fs::path& file, const std::vector<char>& bytes) {
  std::ofstream(file, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

TEST(CheckpointStore, WritesAFolderPerStepAndALinkToTheLatest) {
  const TemporaryFolder folder;
  CheckpointStore store(folder.path() / "run" / "checkpoints", 2, 0);
  write(store, 5);
  write(store, 12);
  const fs::path path = folder.path() / "run" / "checkpoints";
  EXPECT_THAT(entries(path),
              ElementsAre(".lock", "latest", "step-000000000005", "step-000000000012"));
  EXPECT_EQ(fs::read_symlink(path / "latest"), "step-000000000012");
  EXPECT_THAT(entries(path / "latest"), ElementsAre("manifest.json", "manifest.json.sha256",
                                                    "model.safetensors", "optimizer.safetensors"));
  EXPECT_EQ(step_in(path / "latest"), 12);
  EXPECT_THAT(checkpoint_names(path), ElementsAre("step-000000000012", "step-000000000005"));
}

TEST(CheckpointStore, KeepsTheLastAndTheBest) {
  const TemporaryFolder folder;
  const auto steps = [&] {
    std::vector<std::int64_t> found;
    for (const auto& name : checkpoint_names(folder.path())) {
      found.push_back(step_in(folder.path() / name));
    }
    return found;
  };
  {
    CheckpointStore store(folder.path(), 2, 1);
    write(store, 1, 0.9);
    write(store, 2, 0.5);
    write(store, 3);
    write(store, 4, NAN);
    EXPECT_THAT(steps(), ElementsAre(4, 3, 1));
  }
  CheckpointStore store(folder.path(), 2, 1);  // reads the scores of the first
  write(store, 5, 0.7);
  EXPECT_THAT(steps(), ElementsAre(5, 4, 1));
  write(store, 6, 0.9);
  write(store, 7, 0.1);
  write(store, 8, 0.2);
  EXPECT_THAT(steps(), ElementsAre(8, 7, 1)) << "of equal scores, the first";
}

TEST(CheckpointStore, LinksTheBestWhileOneIsKept) {
  const TemporaryFolder folder;
  const fs::path best = folder.path() / "best";
  {
    CheckpointStore store(folder.path(), 1, 1);
    write(store, 1);
    EXPECT_FALSE(fs::is_symlink(best));
    write(store, 2, 0.9);
    write(store, 3, 0.5);
    EXPECT_EQ(fs::read_symlink(best), "step-000000000002");
    EXPECT_THAT(store.names_by_score(), ElementsAre("step-000000000002", "step-000000000003"));
    write(store, 4, 0.95);
    EXPECT_EQ(fs::read_symlink(best), "step-000000000004");
    write(store, 5, 0.95);
    EXPECT_EQ(fs::read_symlink(best), "step-000000000004") << "the first of equal scores";
    EXPECT_EQ(step_in(best), 4);
  }
  CheckpointStore store(folder.path(), 1, 0);
  write(store, 6, 0.1);
  EXPECT_FALSE(fs::is_symlink(best));
}

TEST(CheckpointStore, OneThatSomebodyMovesAwayStopsNoRemoval) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "checkpoints";
  CheckpointStore store(path, 2, 1);
  write(store, 1, 0.9);
  write(store, 2, 0.5);
  write(store, 3, 0.6);
  EXPECT_THAT(checkpoint_names(path),
              ElementsAre("step-000000000003", "step-000000000002", "step-000000000001"));
  fs::rename(path / "step-000000000001", folder.path() / "archived");  // the best
  remove_folder(path / "step-000000000002");                           // among the last
  EXPECT_EQ(written(store, 4, 0.1), "");
  EXPECT_EQ(written(store, 5, 0.2), "");
  EXPECT_EQ(written(store, 6, 0.3), "");
  // The best of those that are there.
  EXPECT_THAT(checkpoint_names(path),
              ElementsAre("step-000000000006", "step-000000000005", "step-000000000003"));
  EXPECT_EQ(step_in(folder.path() / "archived"), 1);
}

TEST(CheckpointStore, OneThatCannotBeRemovedKeepsNoOther) {
  const auto outcomes = testing::run_ranks(1, [&](testing::Rank& rank) {
    const TemporaryFolder folder;
    CheckpointStore store(folder.path(), 1, 0);
    write(store, 1);
    // A mount in it, which nobody can rename or remove.
    if (!testing::mount_disk(folder.path() / "step-000000000001", 1 << 20)) {
      return rank.report("skipped");
    }
    EXPECT_THAT(written(store, 2), HasSubstr("cannot remove"));
    EXPECT_THAT(written(store, 3), HasSubstr("step-000000000001: "));
    EXPECT_THAT(checkpoint_names(folder.path()),
                ElementsAre("step-000000000003", "step-000000000001"));
    ::umount((folder.path() / "step-000000000001").c_str());
    EXPECT_EQ(written(store, 4), "");
    EXPECT_THAT(checkpoint_names(folder.path()), ElementsAre("step-000000000004"));
  });
  if (outcomes[0].result == "skipped") {
    testing::skip_or_fail("a mount needs a namespace of its own");
  }
}

TEST(CheckpointStore, AStepThatIsWrittenAgainReplacesTheOld) {
  const TemporaryFolder folder;
  CheckpointStore store(folder.path(), 2, 0);
  write(store, 1);
  const Written other(9);
  store.write(1, {}, kManifest, other.files());
  EXPECT_EQ(step_in(folder.path() / "step-000000000001"), 9);
  EXPECT_THAT(entries(folder.path()), ElementsAre(".lock", "latest", "step-000000000001"));
}

TEST(CheckpointStore, RemovesThoseAfterTheOneItGoesOnFromFirst) {
  const TemporaryFolder folder;
  {
    CheckpointStore store(folder.path(), 9, 0);
    for (const int step : {10, 20, 30}) write(store, step);
  }
  CheckpointStore store(folder.path(), 2, 0);
  store.continue_from("step-000000000020");
  write(store, 25);
  EXPECT_THAT(checkpoint_names(folder.path()),
              ElementsAre("step-000000000025", "step-000000000020"));
}

TEST(CheckpointStore, RefusesASecondWriter) {
  const TemporaryFolder folder;
  const CheckpointStore store(folder.path(), 1, 0);
  EXPECT_THAT([&] { CheckpointStore(folder.path(), 1, 0); },
              ThrowsMessage<UsageError>(HasSubstr("another run writes checkpoints into")));
}

TEST(CheckpointStore, RefusesAnImpossibleFolder) {
  const TemporaryFolder folder;
  folder.write("file", "text");
  EXPECT_THAT([&] { CheckpointStore(folder.path() / "file", 1, 0); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("file"), HasSubstr("choose another"))));
  EXPECT_THAT(checkpoint_names(folder.path() / "absent"), IsEmpty());
}

// What it looks at is in files, where a sanitizer finds nothing in the two minutes that it takes.
#if !defined(__SANITIZE_ADDRESS__)
struct Kill {
  const char* name;
  // Of the second checkpoint; the first is of step 1.
  std::int64_t step;
  bool can_exchange_folders;
};

class CheckpointStoreKill : public ::testing::TestWithParam<Kill> {};

INSTANTIATE_TEST_SUITE_P(Of, CheckpointStoreKill,
                         ::testing::Values(Kill{"ALaterStep", 2, true},
                                           Kill{"TheSameStep", 1, true},
                                           Kill{"TheSameStepWithoutExchange", 1, false}),
                         [](const auto& info) { return info.param.name; });

TEST_P(CheckpointStoreKill, LeavesTheOldOrTheNewAtEveryCall) {
  if (const auto why = testing::why_no_tracing(); !why.empty()) {
    return testing::skip_or_fail(why);
  }
  const Kill& kill = GetParam();
  // A disk would take its time for each of some thousand flushes.
  const fs::path memory = fs::is_directory("/dev/shm") ? "/dev/shm" : fs::temp_directory_path();
  const Written other(7);  // what the second one contains
  int calls = 0;
  int complete = 0;
  for (bool killed = true; killed;) {
    const TemporaryFolder folder(memory);
    write(folder.path(), 1);
    killed = killed_at_call(++calls, [&] {
      if (!kill.can_exchange_folders) testing::fail_call(SYS_renameat2, EINVAL);
      CheckpointStore store(folder.path(), 1, 0);
      store.write(kill.step, {}, kManifest, other.files());
    });
    // Without an exchange the old one has another name for a moment, until the next store.
    if (!kill.can_exchange_folders) CheckpointStore(folder.path(), 1, 0);
    const std::int64_t found = newest_step(folder.path());
    EXPECT_TRUE(found == 1 || found == 7) << found << " at call " << calls;
    if (found == 7) ++complete;
    const std::int64_t latest = step_in(folder.path() / "latest");
    EXPECT_TRUE(latest == found || latest == 1) << "at call " << calls;
    write(folder.path(), 3);
    EXPECT_THAT(entries(folder.path()), ElementsAre(".lock", "latest", "step-000000000003"))
        << "at call " << calls;
  }
  EXPECT_GT(calls - complete, 30) << "kills before it has its name";
  EXPECT_GT(complete, 3) << "kills after that";
}
#endif

TEST(CheckpointStore, AFullDiskKeepsTheOldAndMakesRoomAgain) {
  const auto outcomes = testing::run_ranks(1, [&](testing::Rank& rank) {
    const TemporaryFolder folder;
    if (!testing::mount_disk(folder.path(), 256 << 10)) return rank.report("skipped");
    CheckpointStore store(folder.path(), 1, 0);
    write(store, 1);
    const std::vector<std::byte> big(512 << 10);
    EXPECT_THAT(
        [&] {
          store.write(2, {}, kManifest, {{"model.safetensors", {big}}});
        },
        ThrowsMessage<BackendError>(HasSubstr("No space left on device")));
    EXPECT_EQ(newest_step(folder.path()), 1);
    EXPECT_THAT(entries(folder.path()), ElementsAre(".lock", "latest", "step-000000000001"));
    write(store, 3);
    EXPECT_EQ(newest_step(folder.path()), 3);
  });
  if (outcomes[0].result == "skipped") {
    testing::skip_or_fail("a mount needs a namespace of its own");
  }
}

TEST(CheckpointStore, AFailedCallKeepsTheOld) {
  for (const auto& [number, error] : std::vector<std::pair<long, int>>{
           {SYS_fsync, EIO}, {SYS_rename, EACCES}, {SYS_renameat, EACCES}, {SYS_mkdir, EDQUOT}}) {
    const auto outcomes = testing::run_ranks(1, [&](testing::Rank& rank) {
      const TemporaryFolder folder;
      CheckpointStore store(folder.path(), 1, 0);
      write(store, 1);
      if (!testing::fail_call(number, error)) return rank.report("skipped");
      EXPECT_THROW(write(store, 2), BackendError) << number;
      EXPECT_EQ(newest_step(folder.path()), 1) << number;
    });
    if (outcomes[0].result == "skipped") {
      return testing::skip_or_fail("no filter of system calls here");
    }
  }
}

TEST(CheckpointStore, FindsATruncationAtEveryByteOfEveryFile) {
  const TemporaryFolder folder;
  write(folder.path(), 1);
  const fs::path checkpoint = folder.path() / "step-000000000001";
  for (const auto& name : entries(checkpoint)) {
    const std::vector<char> whole = content(checkpoint / name);
    for (std::size_t size = 0; size < whole.size(); ++size) {
      fs::resize_file(checkpoint / name, size);
      EXPECT_THROW(read_checkpoint(checkpoint), CheckpointError) << name << " at " << size;
    }
    fs::remove(checkpoint / name);
    EXPECT_THAT([&] { read_checkpoint(checkpoint); },
                ThrowsMessage<CheckpointError>(HasSubstr(name)));
    put(checkpoint / name, whole);
  }
  EXPECT_EQ(step_in(checkpoint), 1);
}

TEST(CheckpointStore, FindsAFlippedBitInEveryByteOfEveryFile) {
  const TemporaryFolder folder;
  write(folder.path(), 1);
  const fs::path checkpoint = folder.path() / "step-000000000001";
  for (const auto& name : entries(checkpoint)) {
    std::vector<char> bytes = content(checkpoint / name);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const char flip = static_cast<char>(1 << (i % 8));
      bytes[i] = static_cast<char>(bytes[i] ^ flip);
      put(checkpoint / name, bytes);
      EXPECT_THROW(read_checkpoint(checkpoint), CheckpointError) << name << " at " << i;
      bytes[i] = static_cast<char>(bytes[i] ^ flip);
    }
    put(checkpoint / name, bytes);
  }
}

void put_manifest(const TemporaryFolder& folder, const std::string& text) {
  folder.write("manifest.json", text);
  folder.write("manifest.json.sha256",
               fmt::format("{}  manifest.json\n", sha256_of(std::as_bytes(std::span(text)))));
}

// Whoever can write the hashes too can write anything, but must not make the reader crash.
TEST(CheckpointStore, RefusesHostileManifests) {
  const TemporaryFolder folder;
  const std::string deep(100, '[');
  for (const auto& [text, why] : std::vector<std::pair<std::string, std::string>>{
           {"", "parse error"},
           {"[]", "manifest.json"},
           {"{}", "manifest.json"},
           {R"({"files": )" + deep + "}", "nested too deeply"},
           {R"({"files": {}, "format": "other"})", "another format"},
           {R"({"files": {}, "format": "lockstep checkpoint", "version": "1"})", "manifest.json"},
           {R"({"files": {"../x": {}}, "format": "lockstep checkpoint", "version": 1})",
            "not in its folder"},
           {R"({"files": {"..": {"bytes": 1, "sha256": ""}}, "format": "lockstep checkpoint",
                "version": 1})",
            ".."},
           {R"({"files": {"x": 3}, "format": "lockstep checkpoint", "version": 1})",
            "manifest.json"},
           {R"({"files": [1], "format": "lockstep checkpoint", "version": 1})", "manifest.json"}}) {
    put_manifest(folder, text);
    EXPECT_THAT([&] { read_checkpoint(folder.path()); },
                ThrowsMessage<CheckpointError>(HasSubstr(why)))
        << text;
  }
}

TEST(CheckpointStore, ALaterVersionIsNoDamage) {
  const TemporaryFolder folder;
  put_manifest(folder, R"({"files": {}, "format": "lockstep checkpoint", "version": 2})");
  EXPECT_THAT([&] { read_checkpoint(folder.path()); },
              ThrowsMessage<UsageError>(HasSubstr("of version 2, and this Lockstep reads")));
}

}  // namespace
}  // namespace lockstep
