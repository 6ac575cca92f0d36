# Candidates that dlock itself knows: names of the configuration file, and within 300 ms what the store tells.
_dlock_values() {
    local -a values
    values=("${(@f)$(_call_program dlock-values dlock __complete $1 ${(q)${(Q)words}[1,CURRENT-1]} 2>/dev/null)}")
    compadd -- ${values:#}
}
_dlock_keys() { _dlock_values keys }
_dlock_backends() { _dlock_values backends }
_dlock_fences() { _dlock_values fences }
_dlock_namespaces() { _dlock_values namespaces }

