# The TAP that lint scripts print: `tap STATUS NAME TEXT` for each check, `tap_end` at the end.
tap_n=0
tap() {
    tap_n=$((tap_n + 1))
    if (($1 == 0)); then
        echo "ok $tap_n $2"
    else
        echo "not ok $tap_n $2"
        printf '# %s\n' "${3//$'\n'/$'\n# '}"
    fi
}
tap_end() {
    echo "1..$tap_n"
}
# tap_run NAME COMMAND...: passes when the command does.
tap_run() {
    local out status=0
    out=$("${@:2}" 2>&1) || status=$?
    tap $status "$1" "$out"
}
# tap_none NAME: passes when standard input is empty; the lines are the offences.
tap_none() {
    local out
    out=$(head -n 40 | cut -c 1-160)
    [[ -z $out ]]
    tap $? "$1" "$out"
}
# tap_cc ARCH: a compiler for ARCH, native or cross; nothing when there is none.
tap_cc() {
    case $(cc -dumpmachine) in
    $1-*) echo cc ;;
    *) command -v "$1-linux-gnu-gcc" ;;
    esac
}
