#!/usr/bin/env bats
# Installing, uninstalling, and what the library shows to those who link it.
load helper

setup() {
    cd "$REPO" || return
    dest=$BATS_TEST_TMPDIR/dest
    mkdir "$dest"
}
make_quiet() { env -u MAKEFLAGS -u MAKELEVEL make -s BUILD="$COLIBRI_BUILD" "$@"; }

@test "install: puts programs, library, man pages and completion in place; uninstall leaves nothing" {
    make_quiet install DESTDIR="$dest"
    for p in convert inspect run serve bench; do
        [[ -x $dest/usr/local/bin/colibri-$p ]]
        [[ -s $dest/usr/local/share/man/man1/colibri-$p.1 ]]
        [[ -s $dest/usr/local/share/bash-completion/completions/colibri-$p ]]
    done
    "$dest/usr/local/bin/colibri-run" --version
    [[ -s $dest/usr/local/share/man/man5/colibri.bin.5 ]]
    [[ -s $dest/usr/local/share/man/man7/colibri.7 ]]
    [[ -s $dest/usr/local/include/colibri.h ]]
    make_quiet uninstall DESTDIR="$dest"
    holds_only "$dest"
}

@test "install: every folder can be chosen" {
    dirs=(PREFIX=/p BINDIR=/b LIBDIR=/l INCLUDEDIR=/i MANDIR=/m DATADIR=/d)
    make_quiet install DESTDIR="$dest" "${dirs[@]}"
    holds_only "$dest" b l i m d
    make_quiet uninstall DESTDIR="$dest" "${dirs[@]}"
    holds_only "$dest"
}

@test "install: uninstall does not touch what others put there" {
    make_quiet install DESTDIR="$dest"
    touch "$dest/usr/local/bin/other"
    make_quiet uninstall DESTDIR="$dest"
    [[ $(find "$dest" -type f) == "$dest/usr/local/bin/other" ]]
}

@test "install: a program builds against it with the archive, with the shared library, and with pkg-config" {
    prefix=$BATS_TEST_TMPDIR/prefix
    make_quiet install PREFIX="$prefix"
    cat >"$BATS_TEST_TMPDIR/app.c" <<'C'
#include <colibri.h>
#include <stdio.h>
int crc32(void);
int crc32(void) { return 7; } /* an embedder's own name, which zlib has too */
int main(void)
{
    struct colibri_model *m = colibri_load_model("nowhere.bin");
    printf("%s %d %d %s\n", colibri_version(), m == NULL, crc32(), colibri_last_error());
    return 0;
}
C
    cd "$BATS_TEST_TMPDIR"
    cc -I"$prefix/include" app.c "$prefix/lib/libcolibri.a" -lm -pthread -o static
    cc -I"$prefix/include" app.c -L"$prefix/lib" -lcolibri -o shared
    has "$(./static)" "$(cd "$REPO" && sed -n 's/.*"\(0\.[0-9.]*\)".*/\1/p' "$prefix/lib/pkgconfig/colibri.pc")" " 1 7 " nowhere.bin
    has "$(LD_LIBRARY_PATH=$prefix/lib ./shared)" " 1 7 " nowhere.bin
    has "$(readelf -d shared)" "[libcolibri.so.0]"
    if command -v pkg-config >/dev/null; then
        export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
        # shellcheck disable=SC2046
        cc app.c $(pkg-config --cflags --libs colibri) -o with-pc
    fi
    (cd "$REPO" && make_quiet uninstall PREFIX="$prefix")
    [[ -z $(find "$prefix" -type f -o -type l) ]]
}

@test "library: the shared one exports exactly what colibri.h declares" {
    awk '/^COLIBRI_API/ { on = 1 } on { print } /;/ { on = 0 }' lib/colibri.h |
        grep -oE '\bcolibri_[a-z0-9_]+\(' | tr -d '(' | sort -u >"$BATS_TEST_TMPDIR/api"
    nm -D --defined-only "$COLIBRI_BUILD/libcolibri.so" | awk '{ print $3 }' | sort -u >"$BATS_TEST_TMPDIR/exported"
    diff "$BATS_TEST_TMPDIR/api" "$BATS_TEST_TMPDIR/exported"
}

@test "library: the archive defines only names of its own" {
    nm -g --defined-only "$COLIBRI_BUILD/libcolibri.a" 2>/dev/null | awk 'NF == 3 { print $3 }' |
        grep -vE '^(clb|colibri)_' >"$BATS_TEST_TMPDIR/foreign" || true
    diff /dev/null "$BATS_TEST_TMPDIR/foreign"
    # ... and needs only libc, libm and threads.
    nm -g "$COLIBRI_BUILD/libcolibri.a" | grep -E ' U (crc32|inflate|adler)' >"$BATS_TEST_TMPDIR/zlib" || true
    diff /dev/null "$BATS_TEST_TMPDIR/zlib"
    readelf -d "$COLIBRI_BUILD/libcolibri.so" | grep -oP 'NEEDED.*\[\K[^\]]+' |
        grep -vE '^(libc|libm|libpthread|ld-linux.*)\.so' >"$BATS_TEST_TMPDIR/needed" || true
    diff /dev/null "$BATS_TEST_TMPDIR/needed"
}

@test "library: no writable globals but the thread's last error" {
    # .data and .bss would be shared by all models of a process; .data.rel.ro is constant.
    objdump -t "$COLIBRI_BUILD/libcolibri.a" | grep -E '\.t?(data|bss)' | grep -v 'data\.rel\.ro' |
        grep -vE '\.tdata\.last\s' >"$BATS_TEST_TMPDIR/globals" || true
    diff /dev/null "$BATS_TEST_TMPDIR/globals"
}

@test "library: the engine part of a static program is under 500 KB" {
    cd "$BATS_TEST_TMPDIR"
    # A program that takes the same functions of libc, so that the difference is ours.
    cc -nostdlib -r -o whole.o "$COLIBRI_BUILD/examples/simple_infer.c.o" "$COLIBRI_BUILD/libcolibri.a"
    nm -u whole.o | awk '{ print $NF }' |
        grep -vE '^(_GLOBAL_OFFSET_TABLE_|__tls_get_addr|stdout|stderr|stdin|environ)$' | sort -u >undefined
    {
        sed 's/.*/extern char &[];/' undefined
        echo 'void *volatile keep[] = {'
        sed 's/$/,/' undefined
        echo '0}; int main(void) { return keep[0] != 0; }'
    } >base.c
    cc -fno-builtin -w -static -o base base.c -lm -pthread
    cc -static -Wl,--gc-sections -o full "$COLIBRI_BUILD/examples/simple_infer.c.o" "$COLIBRI_BUILD/libcolibri.a" -lm -pthread
    strip base full
    engine=$(($(stat -c %s full) - $(stat -c %s base)))
    echo "engine: $engine bytes of $(stat -c %s full)"
    ((engine > 50000 && engine < 500000))
}
