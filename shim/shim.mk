SHIM_OUT := $(FALCON_CACHE)/shim/$(CHECKOUT)
SHIM_TEST_OUT := $(FALCON_CACHE)/shim-test/$(CHECKOUT)
SHIM_SOURCES := $(wildcard shim/src/*/*.* shim/src/*/*/*.* shim/cmake/* shim/tests/*.* shim/tests/*/*.*) shim/CMakeLists.txt
CXX_FILES := $(filter %.cc %.h %.def,$(SHIM_SOURCES))
export SHIM_OUT SHIM_TEST_OUT

# Known by their content, so that another checkout of the same sources neither builds nor reads them again.
SHIM_INPUTS := $(sort $(filter shim/src/% shim/cmake/%,$(SHIM_SOURCES))) shim/CMakeLists.txt shim/build.sh constraints.txt
SHIM_BUILT := $(FALCON_CACHE)/shim-built/$(shell (sha256sum $(SHIM_INPUTS); grep '^version = ' pyproject.toml) | sha256sum | cut -c1-16)
TIDY_INPUTS := $(sort $(CXX_FILES)) shim/CMakeLists.txt .clang-tidy constraints.txt
TIDY_PASSED := $(FALCON_CACHE)/shim-tidy/$(shell sha256sum $(TIDY_INPUTS) | sha256sum | cut -c1-16)

.PHONY: shim shim-test shim-sanitize shim-lint shim-format
shim: $(SHIM_OUT)/falcon-launch ## build libfalcon_shim.so and falcon-launch for this machine's images

$(SHIM_OUT)/falcon-launch: $(SHIM_SOURCES) shim/build.sh | $(VENV)/.done
	@if [ ! -e $(SHIM_BUILT)/falcon-launch ]; then \
	  echo "shim: building with zig (three minutes the first time)"; \
	  FALCON_PYTHON=$(PY) shim/build.sh $(SHIM_OUT); \
	  rm -rf $(SHIM_BUILT).$(CHECKOUT); \
	  mkdir -p $(SHIM_BUILT).$(CHECKOUT); \
	  cp -p $(SHIM_OUT)/libfalcon_shim.so $(SHIM_OUT)/falcon-launch $(SHIM_BUILT).$(CHECKOUT)/; \
	  mv -T $(SHIM_BUILT).$(CHECKOUT) $(SHIM_BUILT) || [ -e $(SHIM_BUILT)/falcon-launch ]; \
	fi
	@mkdir -p $(SHIM_OUT)
	@cp -p $(SHIM_BUILT)/* $(SHIM_OUT)/
	@touch $@

$(SHIM_TEST_OUT)/build.ninja: shim/CMakeLists.txt | $(VENV)/.done
	@cmake -S shim -B $(SHIM_TEST_OUT) -G Ninja >/dev/null

.PHONY: shim-test-programs
shim-test-programs: $(SHIM_TEST_OUT)/build.ninja ## build the C++ tests, and the programs that other tests run
	@cmake --build $(SHIM_TEST_OUT) >/dev/null || cmake --build $(SHIM_TEST_OUT)

shim-test: shim-test-programs ## C++ unit tests
	@ctest --test-dir $(SHIM_TEST_OUT) --output-on-failure

shim-sanitize: | $(VENV)/.done ## the shim's C++ tests under the thread, then the address and undefined-behaviour sanitizers
	@for kind in thread address,undefined; do \
	  out=$(SHIM_TEST_OUT)-$${kind%%,*}; \
	  cmake -S shim -B $$out -G Ninja -DFALCON_SANITIZE=$$kind >/dev/null; \
	  cmake --build $$out >/dev/null || cmake --build $$out; \
	  ctest --test-dir $$out -R sanitized --output-on-failure; \
	done

.PHONY: shim-test-aarch64
shim-test-aarch64: | $(VENV)/.done ## the shim's C++ tests for aarch64 (Debian's qemu-user and libc6-arm64-cross)
	@ulimit -n "$$(ulimit -Hn)"; \
	FALCON_PYTHON=$(PY) cmake -S shim -B $(SHIM_TEST_OUT)-aarch64 -G Ninja -DCMAKE_SYSTEM_NAME=Linux \
	  -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DFALCON_TEST_TARGET=aarch64-linux-gnu.2.36 -DCMAKE_CXX_COMPILER_WORKS=ON \
	  -DCMAKE_CXX_COMPILER=$(CURDIR)/shim/cmake/zig-c++ -DCMAKE_AR=$(CURDIR)/shim/cmake/zig-ar \
	  -DCMAKE_RANLIB=$(CURDIR)/shim/cmake/zig-ranlib \
	  "-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64;-L;/usr/aarch64-linux-gnu" >/dev/null
	@FALCON_PYTHON=$(PY) cmake --build $(SHIM_TEST_OUT)-aarch64 \
	  --target falcon_shim hook_test nccl_test nccl_device_test profiler_test profiler_device_test standin_nccl_old >/dev/null
	@ctest --test-dir $(SHIM_TEST_OUT)-aarch64 -R 'hooks|nccl|profiler' --output-on-failure

# Real releases, for tests of loading and forwarding; a folder each.
NCCL_RELEASES := $(FALCON_CACHE)/nccl
export NCCL_RELEASES
.PHONY: nccl-releases
nccl-releases: $(NCCL_RELEASES)/.done ## the NCCL wheels of shim/tests/nccl-releases.txt (1.5 GB), and what the shim sees of each
	@$(PY) -m dev.nccl_coverage $(addprefix $(NCCL_RELEASES)/,$(shell cat shim/tests/nccl-releases.txt))

$(NCCL_RELEASES)/.done: shim/tests/nccl-releases.txt $(UV)
	@while read -r wheel; do \
	  [ -d "$(NCCL_RELEASES)/$$wheel" ] || $(UV) pip install -q --no-deps --target "$(NCCL_RELEASES)/$$wheel" "$$wheel"; \
	done <shim/tests/nccl-releases.txt
	@touch $@

shim-lint: shim $(TIDY_PASSED) ## clang-format, clang-tidy, and which symbols the library needs
	@clang-format --dry-run --Werror $(CXX_FILES)
	@shim/check_symbols.sh $(SHIM_OUT)/libfalcon_shim.so

# Order only: each new checkout makes its own build.ninja, which says nothing about the sources.
$(TIDY_PASSED): | $(SHIM_TEST_OUT)/build.ninja
	@printf '%s\n' $(filter %.cc,$(CXX_FILES)) | xargs -n 4 -P $$(nproc) \
		clang-tidy -quiet -p $(SHIM_TEST_OUT) --warnings-as-errors='*' 2>/dev/null
	@mkdir -p $(@D)
	@touch $@

shim-format: venv ## rewrite the C++ sources in the project's format
	@clang-format -i $(CXX_FILES)
