
# Bash cuts words at ":" and "=", which keys and URLs have. Sets `words`, `cword`, `cur` and `prev` to those of the line as it was typed.
__dlock_words() {
    local rest=$COMP_LINE word before i
    words=()
    for ((i = 0; i < ${#COMP_WORDS[@]}; i++)); do
        word=${COMP_WORDS[i]}
        before=${#rest}
        rest=${rest#"${rest%%[![:blank:]]*}"}
        if ((i > 0 && before == ${#rest})) && [[ $word == [:=]* || ${words[-1]} == *[:=] ]]; then
            words[-1]+=$word
        else
            words+=("$word")
        fi
        rest=${rest#"$word"}
        ((i == COMP_CWORD)) && cword=$((${#words[@]} - 1)) && cur=${words[-1]}
    done
    words[cword]=$cur
    prev=
    ((cword > 0)) && prev=${words[cword - 1]}
    if [[ $cur == --*=* ]]; then
        prev=${cur%%=*}
        cur=${cur#*=}
    fi
}

# Candidates that dlock itself knows: names of the configuration file, and within 300 ms what the store tells.
# They are other people's text, so that nothing of them is ever expanded.
__dlock_values() {
    local value quoted cut=
    # What stands before the last cut stays on the line.
    [[ $COMP_WORDBREAKS == *=* && $cur == *=* ]] && cut=${cur%"${cur##*=}"}
    [[ $COMP_WORDBREAKS == *:* && ${cur#"$cut"} == *:* ]] && cut=${cur%"${cur##*:}"}
    while IFS= read -r value; do
        quoted=$(printf %q "$value")
        [[ $value == "$cur"* || $quoted == "$cur"* ]] && COMPREPLY+=("${quoted#"$cut"}")
    done < <("${words[0]/#\~/$HOME}" __complete "$1" "${words[@]:1:cword-1}" 2>/dev/null)
}

__dlock_files() {
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -f -- "$cur")
}

__dlock_complete() {
    local words cword cur prev i
    __dlock_words
    COMPREPLY=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        if [[ ${COMP_WORDS[i]} == -- ]]; then
            # The command and its arguments.
            if declare -F _command_offset >/dev/null; then
                _command_offset $((i + 1))
            elif ((i + 1 == COMP_CWORD)); then
                mapfile -t COMPREPLY < <(compgen -c -- "$cur"; compgen -f -- "$cur")
            else
                __dlock_files
            fi
            return 0
        fi
    done
    case $prev in
        -b | --backend) __dlock_values backends ;;
        -k | --key) __dlock_values keys ;;
        --fence) __dlock_values fences ;;
        --namespace) __dlock_values namespaces ;;
        --config | --password-file | --status-file | --metrics-file) __dlock_files ;;
        acquire | renew | verify | release | hold | inspect | names | history | break | explain | forget)
            if [[ $cur == -* ]]; then _dlock "$@"; else __dlock_values keys; fi
            ;;
        help)
            mapfile -t COMPREPLY < <(compgen -W "run acquire renew verify release hold inspect names list history break explain forget doctor init gc completions man" -- "$cur")
            ;;
        *) _dlock "$@" ;;
    esac
}

complete -F __dlock_complete dlock
