
# Candidates that dlock itself knows: names of the configuration file, and within 300 ms what the store tells.
# They are other people's text, so that nothing of them is ever expanded.
__dlock_values() {
    local value
    while IFS= read -r value; do
        [[ $value == "$cur"* ]] && COMPREPLY+=("$(printf %q "$value")")
    done < <("${COMP_WORDS[0]/#\~/$HOME}" __complete "$1" "${COMP_WORDS[@]:1:COMP_CWORD-1}" 2>/dev/null)
}

__dlock_complete() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} i
    COMPREPLY=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        if [[ ${COMP_WORDS[i]} == -- ]]; then
            # The command and its arguments.
            if declare -F _command_offset >/dev/null; then
                _command_offset $((i + 1))
            elif ((i + 1 == COMP_CWORD)); then
                mapfile -t COMPREPLY < <(compgen -c -- "$cur"; compgen -f -- "$cur")
            else
                compopt -o filenames 2>/dev/null
                mapfile -t COMPREPLY < <(compgen -f -- "$cur")
            fi
            return 0
        fi
    done
    case $prev in
        -b | --backend) __dlock_values backends ;;
        -k | --key) __dlock_values keys ;;
        --fence) __dlock_values fences ;;
        --namespace) __dlock_values namespaces ;;
        --config | --password-file | --status-file | --metrics-file)
            compopt -o filenames 2>/dev/null
            mapfile -t COMPREPLY < <(compgen -f -- "$cur")
            ;;
        acquire | renew | verify | release | hold | inspect | names | history | break | explain | forget)
            if [[ $cur == -* ]]; then _dlock "$@"; else __dlock_values keys; fi
            ;;
        help)
            mapfile -t COMPREPLY < <(compgen -W "run acquire renew verify release hold inspect names list history break doctor init gc completions man" -- "$cur")
            ;;
        *) _dlock "$@" ;;
    esac
}

complete -F __dlock_complete dlock
