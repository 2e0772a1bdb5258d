# Colibri. `make help` lists the targets; V=1 shows the commands.

# -- what a builder may set ---------------------------------------------------
CC         ?= cc
CFLAGS     ?= -O2 -g
PREFIX     ?= /usr/local
BINDIR     ?= $(PREFIX)/bin
LIBDIR     ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
DATADIR    ?= $(PREFIX)/share
MANDIR     ?= $(DATADIR)/man
BUILD      ?= build
# The binutils that fit the compiler: for a cross build CC is enough.
ifeq ($(origin AR),default)
AR         := $(shell $(CC) -print-prog-name=ar)
endif
OBJCOPY    ?= $(shell $(CC) -print-prog-name=objcopy)
# Where make bench keeps its models (27 GB) and the peer.
BENCH      ?= $(BUILD)/bench
# The static zlib whose crc32 goes into the library under a name of its own. Empty: link with -lz.
ZLIB_A     ?= $(filter /%,$(shell $(CC) -print-file-name=libz.a))

# As many jobs as cores, unless a -j says otherwise.
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(shell nproc 2>/dev/null || echo 1)
endif

# -- what the code needs ------------------------------------------------------
version = $(shell sed -n 's/^.define COLIBRI_VERSION_$(1) //p' lib/colibri.h)
MAJOR   := $(call version,MAJOR)
VERSION := $(MAJOR).$(call version,MINOR).$(call version,PATCH)

WARN := -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes \
        -Wvla -Wundef -Wwrite-strings
ALL_CPPFLAGS = -I. -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -DCLB_VERSION='"$(VERSION)"' $(CPPFLAGS)
ALL_CFLAGS   = -std=c11 -fPIC -fvisibility=hidden -ffunction-sections -fdata-sections $(WARN) \
               -ffp-contract=off -fno-math-errno -fno-asynchronous-unwind-tables -pthread \
               $(CFLAGS)
ALL_LDFLAGS  = -Wl,--gc-sections $(LDFLAGS)
LDLIBS      += -lm -pthread

PROGRAMS := $(notdir $(wildcard cmd/*))
# The server needs two libraries beyond libc; without their headers the others are built.
SERVE_LIBS := -lmicrohttpd -ljson-c
SERVE      := $(shell printf '\043include <microhttpd.h>\n\043include <json-c/json.h>\nint main(void) \
                { return !MHD_get_version() || !json_c_version(); }' | $(CC) $(CPPFLAGS) $(CFLAGS) \
                -w -x c -o /dev/null - $(LDFLAGS) $(SERVE_LIBS) 2>/dev/null && echo yes)
ifeq ($(SERVE),)
PROGRAMS := $(filter-out colibri-serve,$(PROGRAMS))
endif
EXAMPLES := $(patsubst %.c,%,$(wildcard examples/*.c))
CLI_SRC  := $(sort $(wildcard lib/cli/*.c))
LIB_SRC  := $(filter-out $(CLI_SRC),$(sort $(wildcard lib/*/*.c lib/import/families/*.c \
                                                      kernels/cpu/*.c kernels/scalar/*.c)))
ARCH     := $(shell $(CC) -dumpmachine 2>/dev/null | cut -d- -f1)
ifneq ($(filter x86_64 amd64,$(ARCH)),)
LIB_SRC  += $(sort $(wildcard kernels/avx2/*.c kernels/avx512/*.c))
else ifneq ($(filter aarch64 arm64,$(ARCH)),)
LIB_SRC  += $(sort $(wildcard kernels/neon/*.c))
endif

CUDA_SRC := $(sort $(wildcard kernels/cuda/*.c))
# Plans for GPUs that are elsewhere are in every build.
LIB_SRC  += $(if $(CUDA),$(CUDA_SRC),$(addprefix kernels/cuda/cuda_,layout.c sizes.c paper.c host_cpu.c))

obj      = $(addprefix $(BUILD)/,$(addsuffix .o,$(1)))
LIB     := $(BUILD)/libcolibri.a
CLI     := $(BUILD)/libcli.a
SHARED  := $(BUILD)/libcolibri.so.$(VERSION)
LIB_OBJ := $(call obj,$(LIB_SRC))
ifneq ($(ZLIB_A),)
LIB_OBJ += $(BUILD)/zlib_crc32.o
ZLIB_DEFS := $(foreach f,crc32_z crc32_combine64,-D$f=clb_z_$f)
else
LDLIBS  += -lz
endif

# -- CUDA (doc/cuda.md): CUDA=1 builds it in; CUDA=emulated, for tests only, runs it on the CPU ----
# The architectures that this nvcc knows of; CUDA_ARCHS='80 90' for a quick build. The last one's PTX serves newer devices.
# Products are never merged into sums by the compiler: two kernels must not round one expression in two ways. The legacy
# launch calls cudaLaunchKernel; the other one of nvcc 13 has static variables whose guards need libstdc++.
NVCC        = $(firstword $(wildcard /usr/local/cuda/bin/nvcc) nvcc)
CUDA_HOME   = $(patsubst %/bin/nvcc,%,$(realpath $(shell command -v $(NVCC))))
CUDA_ARCHS := $(if $(CUDA_ARCHS),$(CUDA_ARCHS),$(filter \
                $(patsubst compute_%,%,$(shell $(NVCC) --list-gpu-arch 2>/dev/null)),75 80 86 87 89 90 100 120))
CUDART_A    = $(firstword $(wildcard $(addsuffix /libcudart_static.a,$(CUDA_HOME)/lib64 $(CUDA_HOME)/lib \
                $(CUDA_HOME)/targets/*/lib /usr/lib/$(ARCH)-linux-gnu)))
NVCC_WERROR = -Werror all-warnings
NVCC_FLAGS  = -I. -std=c++17 -O3 -fmad=false $(NVCC_WERROR) -Xptxas -v \
              -Xcompiler=-fPIC,-fno-exceptions,-fno-rtti,-fvisibility=hidden,-Wall,-D__NV_LEGACY_LAUNCH -D__NV_LEGACY_LAUNCH \
              $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$a,code=sm_$a) \
              -gencode arch=compute_$(lastword $(CUDA_ARCHS)),code=compute_$(lastword $(CUDA_ARCHS))
CUDA_OBJ   := $(patsubst %,$(BUILD)/nvcc/%.o,$(wildcard kernels/cuda/*.cu))
EMU_SRC    := $(wildcard kernels/cuda/*.cu) \
              $(filter-out $(addprefix %/emu_,race.cc norace.cc program.cc tests.cc),$(wildcard test/cuda-emu/*.cc))
ifeq ($(CUDA),1)
ifeq ($(wildcard $(CUDART_A)),)
$(error CUDA=1 needs the CUDA toolkit: no nvcc with libcudart_static.a is found (NVCC=/path/to/nvcc names it))
endif
LIB_OBJ    += $(CUDA_OBJ)
LDLIBS     += $(CUDART_A) -ldl -lrt
CUDA_CPP   := -isystem $(CUDA_HOME)/include
else ifeq ($(CUDA),emulated)
LIB_OBJ    += $(call obj,$(EMU_SRC) test/cuda-emu/emu_norace.cc)
LDLIBS     += -lstdc++
CUDA_CPP   := -Itest/cuda-emu
PROGRAM_OBJ = $(call obj,test/cuda-emu/emu_program.cc)
else ifneq ($(CUDA),)
$(error CUDA is 1, or nothing (or emulated, for tests))
endif

ifeq ($(V),1)
say = @:
Q   =
else
say = @printf '  %-7s %s\n' '$(1)' '$(2:$(BUILD)/%=%)'
Q   = @
MAKEFLAGS += --no-print-directory
endif

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SECONDARY:
.SECONDEXPANSION:

# -- build --------------------------------------------------------------------
all: lib programs examples               ## build library, programs and examples (default)
lib: $(LIB) $(SHARED) $(BUILD)/colibri.pc
programs: $(PROGRAMS:%=$(BUILD)/bin/%)
ifeq ($(SERVE),)
	@echo 'colibri-serve is not built: $(CC) finds no libmicrohttpd and json-c' \
	    '(Debian: libmicrohttpd-dev libjson-c-dev; make setup)'
endif
examples: $(EXAMPLES:%=$(BUILD)/%)

# Everything but the arithmetic and the tokenizer is small rather than fast: the engine fits in 500 KB.
# Of the tokenizer, what the time does not go to is, too: decoding, normalisers, added tokens, patterns
# that nobody published.
SMALL := $(filter lib/api/% lib/backend/% lib/base/% lib/chat/% lib/format/% lib/import/% lib/model/% \
                  lib/sample/sampling.c lib/session/% lib/token/added% lib/token/decode.c lib/token/normal.c lib/token/program% \
                  lib/token/tables% lib/token/spm% lib/forward/% kernels/cpu/cpuid.c \
                  $(addprefix kernels/cuda/cuda_,layout.c sizes.c paper.c) \
                  $(addprefix kernels/cpu/cpu_,acts.c append.c attn_project.c attn_output.c backend.c \
                    embed.c logits.c mla.c moe% router.c),$(LIB_SRC))
SMALL := $(filter-out $(addprefix lib/base/,crc.c fmath.c json.c pool.c) \
                      $(addprefix lib/import/,convert_read.c decode.c),$(SMALL))
$(call obj,$(filter-out $(SMALL) kernels/avx% kernels/neon%,$(LIB_SRC))): ISA := -fno-align-loops -fno-align-jumps
$(call obj,$(SMALL)): ISA := $(if $(filter -O2,$(CFLAGS)),-Os)

# Only these folders, and clb_expf with its like, may use wide instructions; it is decided at run time.
$(BUILD)/kernels/avx2/%.o:           ISA := -mavx2 -mfma -mf16c
$(BUILD)/kernels/avx2/%_avxvnni.c.o: ISA := -mavx2 -mfma -mf16c -mavxvnni
$(BUILD)/kernels/avx512/%.o:         ISA := -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq \
                                            -mavx512vl -mavx512vnni
# gcc for aarch64 schedules before it allocates registers, and pushes sums out of them.
in_order := $(if $(findstring clang,$(CC)),,-fno-schedule-insns)
$(BUILD)/kernels/neon/%.o:           ISA := -march=armv8.2-a+dotprod $(in_order)
$(BUILD)/kernels/neon/%_i8mm.c.o:    ISA := -march=armv8.2-a+dotprod+i8mm $(in_order)

$(BUILD)/%.c.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(ALL_CPPFLAGS) $(CUDA_HEADERS) $(DEFS) $(ALL_CFLAGS) $(ISA) -MMD -MP -c -o $@ $<

# zlib's crc32 under the prefix clb_z_, so that it never meets the zlib of an embedder.
$(BUILD)/lib/base/crc.c.o: DEFS := $(ZLIB_DEFS)
$(BUILD)/zlib_crc32.o: $(ZLIB_A) $(BUILD)/flags
	$(call say,OBJCOPY,crc32 of $<)
	$(Q)$(AR) p $< "$$($(AR) t $< | grep -m1 '^crc32\.')" > $@.tmp
	$(Q)$(OBJCOPY) --prefix-symbols=clb_z_ $@.tmp $@ && $(RM) $@.tmp

$(LIB): $(LIB_OBJ)
	$(call say,AR,$@)
	$(Q)$(RM) $@ && $(AR) rcs $@ $^
$(CLI): $(call obj,$(CLI_SRC))
	$(call say,AR,$@)
	$(Q)$(RM) $@ && $(AR) rcs $@ $^

$(SHARED): $(LIB_OBJ) lib/colibri.map
	$(call say,LD,$@)
	$(Q)$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) -shared -Wl,-soname,libcolibri.so.$(MAJOR) \
	    -Wl,--no-undefined -Wl,--version-script=lib/colibri.map -o $@ $(LIB_OBJ) $(LDLIBS)
	$(Q)ln -sf $(@F) $(BUILD)/libcolibri.so.$(MAJOR) && ln -sf $(@F) $(BUILD)/libcolibri.so

$(BUILD)/bin/colibri-serve: LDLIBS += $(SERVE_LIBS)
$(BUILD)/bin/%: $$(call obj,$$(sort $$(wildcard cmd/$$*/*.c))) $$(PROGRAM_OBJ) $(CLI) $(LIB)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) -o $@ $^ $(LDLIBS)
$(BUILD)/examples/%: $(BUILD)/examples/%.c.o $(LIB)
	$(call say,LD,$@)
	$(Q)$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) -o $@ $^ $(LDLIBS)

# Always written: it depends on PREFIX and the like, which are no reason to compile anything.
$(BUILD)/colibri.pc: lib/colibri.pc.in FORCE
	@mkdir -p $(@D)
	$(Q)sed -e 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@INCLUDEDIR@|$(INCLUDEDIR)|' \
	    -e 's|@VERSION@|$(VERSION)|; s|@LIBS@|$(LDLIBS)|' $< > $@

# Changes only when the flags do, so that other flags mean a full rebuild.
FLAGS = $(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) $(ALL_LDFLAGS) $(LDLIBS) $(ZLIB_A) $(ZLIB_DEFS) $(CUDA:%=CUDA=%)
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(FLAGS)' | cmp -s - $@ || echo '$(FLAGS)' > $@

# -- tests (test/README.md) ---------------------------------------------------
UNITS := $(patsubst %.c,$(BUILD)/%,$(wildcard test/unit/test_*.c test/kernel/check_*.c))
# What is tested is built as it is installed, the tests quickly.
$(UNITS:%=%.c.o): ISA := -O1

$(BUILD)/test/%: $(BUILD)/test/%.c.o $(CLI) $(LIB)
	$(call say,LD,$@)
	$(Q)$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) -o $@ $^ $(LDLIBS)

# Levels that this machine may lack are checked in emulation (SIMDe, test/kernel/emulated.h); with
# sanitizers that would take minutes to compile.
SIMDE    := $(if $(findstring sanitize,$(CFLAGS)),,$(wildcard /usr/include/simde/x86/avx512.h))
EMULATED := $(if $(SIMDE),$(patsubst %,$(BUILD)/emulated/%.o,\
                          $(filter kernels/avx512/% %_avxvnni.c,$(LIB_SRC))))
$(BUILD)/emulated/%.c.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC,$< in emulation)
	$(Q)$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -O1 -g1 -Wno-psabi -mavx2 -mfma -mf16c \
	    -include test/kernel/emulated.h -MMD -MP -c -o $@ $<
$(filter $(BUILD)/test/kernel/%,$(UNITS)): $(EMULATED)

units: $(UNITS) ; @:

# -- CUDA ---------------------------------------------------------------------
$(BUILD)/nvcc/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(NVCC) $(NVCC_FLAGS)' | cmp -s - $@ || echo '$(NVCC) $(NVCC_FLAGS)' > $@
$(BUILD)/nvcc/%.o: % $(BUILD)/nvcc/flags
	@mkdir -p $(@D)
	$(call say,NVCC,$<)
	$(Q)$(NVCC) $(NVCC_FLAGS) -MMD -MP -MF $(@:.o=.d) -c -o $@ $< 2>$@.log || { grep -v -e '^ptxas info' -e 'bytes stack' $@.log; exit 1; }
# Registers and shared memory of each kernel; one that spills fails the build.
$(BUILD)/nvcc/registers.txt: $(CUDA_OBJ)
	$(Q)tools/cuda_report.sh kernels/cuda $(CUDA_OBJ:%=%.log) >$@.tmp || { cat $@.tmp; exit 1; }
	$(Q)mv $@.tmp $@
cuda-kernels: $(BUILD)/nvcc/registers.txt ## compile the CUDA kernels with nvcc: what each takes
	@cat $<

# The emulation (test/cuda-emu/README.md): .cu files as C++ of the host, and a runtime of our own.
EMU_FLAGS   = $(ALL_CPPFLAGS) -Itest/cuda-emu -std=c++17 -fPIC -O1 -g1 -fno-exceptions -fno-rtti -fno-omit-frame-pointer \
              -ffp-contract=off -Wall -Wextra -Wundef -Wwrite-strings $(filter -fsanitize% -fno-sanitize%,$(CFLAGS))
$(call obj,$(CUDA_SRC)): DEFS = -DCLB_CUDA_LOWEST=$(firstword $(CUDA_ARCHS) 75)
$(call obj,$(CUDA_SRC)): CUDA_HEADERS = $(CUDA_CPP)
ifeq ($(CUDA),1)
$(LIB): | $(BUILD)/nvcc/registers.txt
# The tests of the emulation that need nothing of it, for the device (test/gpu/check.sh).
GPU_TESTS  := $(addprefix $(BUILD)/test/gpu/,ceiling test_backend_archs \
                $(basename $(notdir $(wildcard test/cuda-emu/test_moe_*.cu test/cuda-emu/test_[ahs]*.cu))))
gpu-tests: $(GPU_TESTS) ; @:
$(BUILD)/test/gpu/ceiling: $(BUILD)/nvcc/test/gpu/ceiling.cu.o
$(BUILD)/test/gpu/test_backend_archs: $(call obj,test/cuda-emu/test_backend_archs.c test/gpu/no_emulation.c)
$(filter $(BUILD)/test/gpu/test_moe% $(BUILD)/test/gpu/test_a% $(BUILD)/test/gpu/test_h% $(BUILD)/test/gpu/test_s%,$(GPU_TESTS)): \
    $(BUILD)/test/gpu/%: $(BUILD)/nvcc/test/cuda-emu/%.cu.o $(call obj,test/cuda-emu/reference.c)
$(GPU_TESTS): $(CLI) $(LIB)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) -o $@ $(filter-out %.a,$^) $(CLI) $(LIB) $(LDLIBS) -lstdc++
else ifeq ($(CUDA),emulated)
EMU_C      := $(call obj,$(filter-out test/cuda-emu/test_%,$(wildcard test/cuda-emu/*.c)) test/cuda-emu/emu_tests.cc)
EMU_TESTS  := $(patsubst %,$(BUILD)/%,$(basename $(wildcard test/cuda-emu/test_*.c*)))
emu-tests: $(EMU_TESTS) ; @:
$(EMU_TESTS): $(BUILD)/test/cuda-emu/test_%: $$(call obj,$$(wildcard test/cuda-emu/test_$$*.c*)) $(EMU_C) $(CLI) $(LIB)
	$(call say,LD,$@)
	$(Q)$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) -o $@ $^ $(LDLIBS)
endif
ifneq ($(CUDA),)
$(call obj,lib/backend/backend.c): DEFS := -DCLB_CUDA
endif
$(BUILD)/test/cuda-emu/%.c.o $(BUILD)/test/gpu/%.c.o: CUDA_HEADERS = $(if $(filter 1,$(CUDA)),$(CUDA_CPP) -iquote test/cuda-emu,-Itest/cuda-emu)
$(BUILD)/%.cu.o: %.cu $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CXX,$<)
	$(Q)$(CXX) -x c++ $(EMU_FLAGS) -MMD -MP -c -o $@ $<
# What runs the threads takes most of the time, and has no sanitizers in it.
$(addprefix $(BUILD)/test/cuda-emu/emu_,block.cc.o shared.cc.o): EMU_MORE = -O3 -fno-sanitize=all $(if $(findstring address,$(CFLAGS)),-DEMU_ASAN)
$(BUILD)/%.cc.o: %.cc $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CXX,$<)
	$(Q)$(CXX) $(EMU_FLAGS) $(EMU_MORE) -MMD -MP -c -o $@ $<

# The tests again with the race detector, which stands where libtsan would: kernels are compiled for it, the rest is plain.
RACE       := $(BUILD)/race
RACE_OBJ    = $(addprefix $(RACE)/,$(addsuffix .o,$(CUDA_SRC) lib/backend/backend.c $(EMU_SRC) \
                test/cuda-emu/emu_race.cc test/cuda-emu/emu_tests.cc $(filter-out test/cuda-emu/test_%,$(wildcard test/cuda-emu/*.c))))
$(RACE)/%.c.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC,$< for the race detector)
	$(Q)$(CC) $(ALL_CPPFLAGS) -Itest/cuda-emu -DCLB_CUDA -DCLB_CUDA_LOWEST=75 $(ALL_CFLAGS) -MMD -MP -c -o $@ $<
$(addprefix $(RACE)/test/cuda-emu/emu_,block.cc.o shared.cc.o race.cc.o): EMU_MORE = -O3
$(RACE)/%.cc.o: %.cc $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CXX,$< for the race detector)
	$(Q)$(CXX) $(EMU_FLAGS) $(EMU_MORE) -MMD -MP -c -o $@ $<
$(RACE)/%.cu.o: %.cu $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CXX,$< for the race detector)
	$(Q)$(CXX) -x c++ $(EMU_FLAGS) -fsanitize=thread -MMD -MP -c -o $@ $<
RACE_TESTS := $(patsubst %,$(RACE)/%,$(basename $(wildcard test/cuda-emu/test_*.c*)))
race-tests: $(RACE_TESTS) ; @:
race-kernels: $(patsubst %.cu,$(RACE)/%,$(wildcard test/cuda-emu/test_*.cu)) ; @:
$(RACE_TESTS): $(RACE)/test/cuda-emu/test_%: $$(addprefix $(RACE)/,$$(addsuffix .o,$$(wildcard \
                     test/cuda-emu/test_$$*.c*))) $(RACE_OBJ) $(CLI) $(LIB)
	$(call say,LD,$@)
	$(Q)$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) -o $@ $^ $(LDLIBS) -lstdc++
emu: race-kernels
	+@$(san) emu-tests programs

# Lines for what a sanitizer finds; with variables as well the compiler takes half as long again.
SAN_FLAGS  := -O1 -g1 -fno-omit-frame-pointer -fno-sanitize-recover=all
SAN_BUILD  := $(BUILD)/san
TSAN_BUILD := $(BUILD)/tsan
san = $(MAKE) BUILD=$(SAN_BUILD) CUDA=emulated CPPFLAGS='$(CPPFLAGS) -DCLB_ALLOC_GUARD' \
      CFLAGS='$(SAN_FLAGS) -fsanitize=address,undefined'
tsan = $(MAKE) BUILD=$(TSAN_BUILD) CUDA= CFLAGS='$(SAN_FLAGS) -fsanitize=thread'
# What runs in qemu. The zlib is the compiler's, or one that tools/setup.sh has unpacked.
arm = test/aarch64_lacks.sh $(BUILD) || $(MAKE) BUILD=$(BUILD)/aarch64 CC=aarch64-linux-gnu-gcc \
      AR=aarch64-linux-gnu-ar OBJCOPY=aarch64-linux-gnu-objcopy CUDA= CFLAGS='-O2 -g' CPPFLAGS= LDFLAGS= \
      $$(ls $(BUILD)/aarch64-zlib/libz.a 2>/dev/null | sed 's/^/ZLIB_A=/')
run = test/run.sh --build $(BUILD) $(if $(ONLY),--only '$(ONLY)')

setup:                                   ## install the packages that demo and test need
	@BUILD=$(BUILD) tools/setup.sh full
demo:                                    ## build, convert the bundled model, ask it, time it
	@tools/setup.sh demo
	+@$(MAKE) programs
	@tools/demo.sh $(BUILD)
test:                                    ## everything that fits in 15 minutes; ONLY=GLOB selects suites
	@tools/setup.sh test
	+@$(MAKE) all units race-kernels
	+@$(san) all units emu-tests
	@$(run) lint unit san cuda-emu cli golden
test-full:                               ## everything else as well: valgrind, TSan, long mutation
	@BUILD=$(BUILD) tools/setup.sh full
	+@$(MAKE) all units race-tests
	+@$(san) all units emu-tests
	+@$(tsan) all units
	+@$(arm) all units
	@$(run) --full lint unit san cuda-emu cli golden san-cli valgrind tsan aarch64
check-unit: units                        ## C tests: units, then kernels
	@$(run) unit
check-san:                               ## C tests again under ASan and UBSan
	+@$(san) units
	@$(run) san
test-cuda-emu: emu                       ## CUDA kernels on the CPU against the scalar ones
	@$(run) cuda-emu
check-cli: all                           ## Bats tests of the programs
	@$(run) cli
check-aarch64: programs                  ## everything for aarch64 in qemu, and the same bits as here
	+@$(arm) all units
	@$(run) --full aarch64
check-golden: all                        ## outputs against the reference
	@$(run) golden
lint:                                    ## layers, lengths, headers, man pages, scripts
	@$(run) lint
bench: programs                          ## time Colibri beside llama.cpp (test/bench/README.md)
	@tools/setup.sh bench
	@test/bench/bench.py --build $(BUILD) --dir $(BENCH) $(if $(ROUNDS),--rounds $(ROUNDS)) \
	    $(if $(ONLY),--only '$(ONLY)') $(if $(PEER_IK),--ik $(PEER_IK)) $(if $(CPU),--cpu $(CPU)) \
	    $(if $(PEER_CMAKE),--peer-cmake='$(PEER_CMAKE)') $(if $(FRESH),--fresh) \
	    $(if $(NO_PEER),--no-peer)

# -- install ------------------------------------------------------------------
D          := $(DESTDIR)
MAN        := $(wildcard man/*.[1-8])
COMPLETION := $(DATADIR)/bash-completion/completions
man_at      = $(MANDIR)/man$(patsubst .%,%,$(suffix $(1)))/$(notdir $(1))
INSTALLED   = $(PROGRAMS:%=$(BINDIR)/%) $(PROGRAMS:%=$(COMPLETION)/%) $(INCLUDEDIR)/colibri.h \
              $(addprefix $(LIBDIR)/,libcolibri.a libcolibri.so libcolibri.so.$(MAJOR) \
              libcolibri.so.$(VERSION) pkgconfig/colibri.pc) $(foreach m,$(MAN),$(call man_at,$m))

install: lib programs                    ## install under PREFIX (/usr/local), below DESTDIR
	@install -d $(sort $(dir $(addprefix $(D),$(INSTALLED))))
	install -m 755 $(PROGRAMS:%=$(BUILD)/bin/%) $(D)$(BINDIR)
	install -m 644 lib/colibri.h $(D)$(INCLUDEDIR)
	install -m 644 $(LIB) $(SHARED) $(D)$(LIBDIR)
	ln -sf libcolibri.so.$(VERSION) $(D)$(LIBDIR)/libcolibri.so.$(MAJOR)
	ln -sf libcolibri.so.$(MAJOR) $(D)$(LIBDIR)/libcolibri.so
	install -m 644 $(BUILD)/colibri.pc $(D)$(LIBDIR)/pkgconfig
	for m in $(MAN); do install -m 644 $$m $(D)$(MANDIR)/man$${m##*.}; done
	for p in $(PROGRAMS); do install -m 644 tools/colibri.bash-completion $(D)$(COMPLETION)/$$p; done
uninstall:                               ## remove what install put there
	$(RM) $(addprefix $(D),$(INSTALLED))
	@if [ -n '$(D)' ] && cd '$(D)'; then \
	    rmdir -p --ignore-fail-on-non-empty $(sort $(dir $(INSTALLED:/%=%))) 2>/dev/null; fi; true

clean:                                   ## remove the build folder
	$(RM) -r $(BUILD)
help:                                    ## print this
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 14

.PHONY: all lib programs examples units emu emu-tests race-tests race-kernels gpu-tests cuda-kernels setup demo test test-full test-cuda-emu check-unit \
        check-san check-aarch64 check-cli check-golden lint bench install uninstall clean help FORCE
FORCE:
-include $(patsubst %.o,%.d,$(filter %.c.o,$(EMULATED) $(LIB_OBJ) $(call obj,$(CLI_SRC) \
          $(wildcard cmd/*/*.c examples/*.c test/unit/*.c test/kernel/*.c)))) \
         $(wildcard $(BUILD)/kernels/cuda/*.d $(BUILD)/test/cuda-emu/*.d $(RACE)/*/*/*.d \
                     $(BUILD)/nvcc/*/*/*.d)
