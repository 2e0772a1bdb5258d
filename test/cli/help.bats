#!/usr/bin/env bats
# --help, --version, completion and man pages agree, for every program.
load helper

programs=(colibri-convert colibri-inspect colibri-run colibri-serve colibri-bench)
options_of() { "$1" --completions | sed 's/=.*//' | sort; }

@test "help: goes to stdout, succeeds, fits one screen" {
    for p in "${programs[@]}"; do
        run -0 --separate-stderr "$p" --help
        [[ -z $stderr ]]
        [[ ${lines[0]} == "usage: $p "* ]]
        ((${#lines[@]} <= 48)) || fail "$p: ${#lines[@]} lines"
        if LC_ALL=C.UTF-8 grep -E '^.{81}' <<<"$output"; then fail "$p: wider than 80 columns"; fi
        [[ $("$p" -h) == "$output" ]]
    done
}

@test "help: every option of the completion is in --help, and the other way round" {
    for p in "${programs[@]}"; do
        "$p" --help | grep -oE '^ +(-[A-Za-z], +)?--[a-z0-9-]+' | grep -oE -- '--[a-z0-9-]+' | sort >"$BATS_TEST_TMPDIR/help"
        diff "$BATS_TEST_TMPDIR/help" <(options_of "$p") || fail "$p"
    done
}

@test "help: the man page has exactly the options of the program" {
    for p in "${programs[@]}"; do
        # .It Fl p , -prefill Ar N
        sed -nE '/^\.Sh OPTIONS/,/^\.Sh [^O]/s/^\.It Fl (.* , )?(Fl )?-([a-z0-9-]+).*/--\3/p' "$REPO/man/$p.1" | sort >"$BATS_TEST_TMPDIR/man"
        diff "$BATS_TEST_TMPDIR/man" <(options_of "$p") || fail "$p"
    done
}

@test "help: letters and arguments in the man page are those of --help" {
    for p in "${programs[@]}"; do
        "$p" --help | grep -oE '^ +(-[A-Za-z], +)?--[a-z0-9-]+( [^ ]+)?' | sed -E 's/^ +//; s/, +/ /' | sort >"$BATS_TEST_TMPDIR/help"
        sed -nE '/^\.Sh OPTIONS/,/^\.Sh [^O]/s/^\.It Fl //p' "$REPO/man/$p.1" |
            sed -E 's/^([A-Za-z0-9]) , (Fl )?-/-\1 --/; s/^-([a-z0-9-]+)( Ar|$)/--\1\2/; s/ Ar / /; s/ \| (Ar )?/|/g; s/ Op / /; s/ No / /g' | sort >"$BATS_TEST_TMPDIR/man"
        diff "$BATS_TEST_TMPDIR/help" "$BATS_TEST_TMPDIR/man" || fail "$p"
    done
}

@test "version: a line with the version of the header; a build with CUDA has one more" {
    for p in "${programs[@]}"; do
        run -0 --separate-stderr "$p" --version
        [[ ${lines[0]} =~ ^$p\ [0-9]+\.[0-9]+\.[0-9]+$ ]] || fail "$output"
        [[ ${#lines[@]} == 1 || (${#lines[@]} == 2 && ${lines[1]} == "CUDA "*) ]] || fail "$output"
        [[ $("$p" -V) == "$output" ]]
    done
}

@test "usage: an unknown option is named, with status 2 and nothing on stdout" {
    for p in "${programs[@]}"; do
        run_err 2 "$p" --wat
        [[ $message == "$p: "*"'--wat'"* ]] || fail "$message"
        [[ ${stderr_lines[1]} == "$p: try '$p --help'" ]]
        run_err 2 "$p" -Z
        run_err 2 "$p"
    done
}

@test "usage: a missing value and a superfluous one are named" {
    for p in "${programs[@]}"; do
        with=$("$p" --completions | grep -m 1 '=' | sed 's/=.*//')
        run_err 2 "$p" "$with"
        has "$message" "$with"
        run_err 2 "$p" --help=x
        has "$message" --help
    done
}

@test "usage: numbers are taken whole and their range is shown" {
    run_err 2 colibri-bench --repeats 3x m.bin
    has "$message" "3x"
    run_err 2 colibri-bench --repeats 0 m.bin
    has "$message" 1000
    run_err 2 colibri-run --max-tokens 99999999999999999999 m.bin || run_err 2 colibri-run -n 99999999999999999999 m.bin
}

@test "completion: offers options, words of a choice, and files" {
    cd "$BATS_TEST_TMPDIR"
    touch some.bin
    complete_words() { # PROGRAM WORD...: what is offered for the last word
        bash -c 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
            _colibri "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"; printf "%s\n" "${COMPREPLY[@]}"' - \
            "$REPO/tools/colibri.bash-completion" "$@"
    }
    [[ $(complete_words colibri-bench --kv) == --kv-dtype ]]
    [[ $(complete_words colibri-bench --kv-dtype f1) == f16 ]]
    [[ $(complete_words colibri-bench --kv-dtype = f3) == f32 ]]
    [[ $(complete_words colibri-bench so) == some.bin ]]
    [[ $(complete_words colibri-bench --tokens so) == some.bin ]]
    for p in "${programs[@]}"; do
        diff <(complete_words "$p" -- | sort) <(options_of "$p") || fail "$p"
    done
}

@test "options: every one in the tables occurs in a test of its program" {
    for p in "${programs[@]}"; do
        tests=$REPO/test/cli/$p.bats
        [[ -e $tests ]] || tests=$REPO/test/cli/${p#colibri-}.bats
        for o in $(options_of "$p"); do
            letter=$("$p" --help | sed -nE "s/^ +(-[A-Za-z]), +$o( .*|\$)/\\1/p")
            grep -qE -- "(^|[ \"'(])($o${letter:+|$letter})([ =\"')]|\$)" "$tests" "$REPO/test/cli/chat.bats" "$BATS_TEST_FILENAME" ||
                missing+=" $p:$o"
        done
    done
    [[ -z ${missing:-} ]] || fail "no test uses$missing"
}
