# Colibri. `make help` lists the targets.

VERSION := 0.1.0

# -- what a builder may set ---------------------------------------------------
CC       ?= cc
CFLAGS   ?= -O2 -g
PREFIX   ?= /usr/local
BINDIR   ?= $(PREFIX)/bin
LIBDIR   ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
MANDIR   ?= $(PREFIX)/share/man
BUILD    ?= build

# -- what the code needs ------------------------------------------------------
WARN := -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes \
        -Wvla -Wundef -Wwrite-strings
ALL_CPPFLAGS = -I. -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -DCLB_VERSION='"$(VERSION)"' $(CPPFLAGS)
ALL_CFLAGS   = -std=c11 -fPIC -fvisibility=hidden $(WARN) -ffp-contract=off -fno-math-errno \
               -pthread $(CFLAGS)
LDLIBS  += -lz -lm -pthread

PROGRAMS := $(notdir $(wildcard cmd/*))
LIB_SRC  := $(sort $(wildcard lib/*/*.c lib/import/families/*.c kernels/cpu/*.c kernels/scalar/*.c))
CLI_SRC  := $(sort $(wildcard lib/cli/*.c))
LIB_SRC  := $(filter-out $(CLI_SRC),$(LIB_SRC))
ARCH     := $(shell $(CC) -dumpmachine 2>/dev/null | cut -d- -f1)
ifneq ($(filter x86_64 amd64,$(ARCH)),)
LIB_SRC  += $(sort $(wildcard kernels/avx2/*.c kernels/avx512/*.c))
endif

obj     = $(addprefix $(BUILD)/,$(addsuffix .o,$(1)))
LIB    := $(BUILD)/libcolibri.a
CLI    := $(BUILD)/libcli.a
SHARED := $(BUILD)/libcolibri.so

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SECONDARY:

all: $(PROGRAMS:%=$(BUILD)/bin/%) $(LIB) $(SHARED)   ## build the library and the programs (default)

# Only these folders may use wide instructions; dispatch decides at run time.
$(BUILD)/kernels/avx2/%.o:   ISA := -mavx2 -mfma -mf16c
$(BUILD)/kernels/avx512/%.o: ISA := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni

$(BUILD)/%.c.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) $(ISA) -MMD -MP -c -o $@ $<

$(LIB): $(call obj,$(LIB_SRC))
	$(RM) $@
	$(AR) rcs $@ $^

$(CLI): $(call obj,$(CLI_SRC))
	$(RM) $@
	$(AR) rcs $@ $^

$(SHARED): $(call obj,$(LIB_SRC))
	$(CC) $(ALL_CFLAGS) $(LDFLAGS) -shared -Wl,-soname,libcolibri.so.0 -Wl,--no-undefined -o $@ $^ $(LDLIBS)

.SECONDEXPANSION:
$(BUILD)/bin/%: $$(call obj,$$(wildcard cmd/$$*/*.c)) $(CLI) $(LIB)
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $(LDFLAGS) -o $@ $^ $(LDLIBS)

# Changes only when the flags do, so that other flags mean a full rebuild.
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS)' | cmp -s - $@ || \
	 echo '$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS)' > $@

# -- tests --------------------------------------------------------------------
TESTS := $(patsubst %.c,$(BUILD)/%,$(wildcard test/unit/test_*.c test/kernel/check_*.c))

$(BUILD)/test/%: $(BUILD)/test/%.c.o $(CLI) $(LIB)
	$(CC) $(ALL_CFLAGS) $(LDFLAGS) -o $@ $^ $(LDLIBS)

check-unit: $(TESTS)                     ## C tests: units, then kernels
	@set -e; for t in $^; do echo "# $$t"; $$t; done

clean:                                   ## remove the build folder
	$(RM) -r $(BUILD)
help:                                    ## print this
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 14

.PHONY: all check-unit clean help FORCE
FORCE:
-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
