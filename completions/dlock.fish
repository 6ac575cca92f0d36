# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_dlock_global_optspecs
    string join \n b/backend= config= password-file= backend-timeout= host= namespace= insecure-argv json o/output= color= q/quiet v/verbose h/help V/version
end

function __fish_dlock_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_dlock_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_dlock_using_subcommand
    set -l cmd (__fish_dlock_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c dlock -n "__fish_dlock_needs_command" -s b -l backend -d 'The store: a URL, or its name in the configuration' -r
complete -c dlock -n "__fish_dlock_needs_command" -l config -d 'The configuration file' -r
complete -c dlock -n "__fish_dlock_needs_command" -l password-file -d 'A file that holds the store\'s password' -r
complete -c dlock -n "__fish_dlock_needs_command" -l backend-timeout -d 'How long the store may take to answer [5s]' -r
complete -c dlock -n "__fish_dlock_needs_command" -l host -d 'This machine\'s name in leases' -r
complete -c dlock -n "__fish_dlock_needs_command" -l namespace -d 'The prefix of every key in the store [dlock]' -r
complete -c dlock -n "__fish_dlock_needs_command" -s o -l output -d 'How to print; on-failure: run shows the command\'s output only if the run failed' -r -f -a "human\t''
json\t''
on-failure\t''"
complete -c dlock -n "__fish_dlock_needs_command" -l color -d 'Colours on the terminal' -r -f -a "auto\t''
always\t''
never\t''"
complete -c dlock -n "__fish_dlock_needs_command" -l insecure-argv -d 'Allow a password in the --backend URL'
complete -c dlock -n "__fish_dlock_needs_command" -l json -d 'Print one JSON object (= -o json)'
complete -c dlock -n "__fish_dlock_needs_command" -s q -l quiet -d 'No notices'
complete -c dlock -n "__fish_dlock_needs_command" -s v -l verbose -d 'Print the causes of an error'
complete -c dlock -n "__fish_dlock_needs_command" -s h -l help -d 'Print help; --help: all options'
complete -c dlock -n "__fish_dlock_needs_command" -s V -l version -d 'Print the version'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "run" -d 'Take a lock, run a command, renew, release; exit with its status'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "acquire" -d 'Take a lock and return; prints the token that holds it'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "renew" -d 'Extend the lease of a lock that was acquired'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "verify" -d 'Check whether a token still holds a lock'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "release" -d 'Release a lock that was acquired'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "hold" -d 'Keep a lock in the foreground, until stdin ends'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "inspect" -d 'Show the holders of a lock, its waiters, and when it expires'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "names" -d 'Show under which name other lock libraries share a lock'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "list" -d 'Show every held lock'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "history" -d 'Show the runs of a lock, and how each ended'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "report" -d 'Write a page of all jobs for a browser'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "break" -d 'Ask the holder of a lock to stop and give up'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "explain" -d 'Show what a run would do now, and where its settings come from'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "forget" -d 'Remove the run records of a key, so that its next run is not refused'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "doctor" -d 'Check whether the configured store can keep its promises'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "init" -d 'Create the tables that a SQL store needs'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "gc" -d 'Remove the records of keys that are no longer used'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "completions" -d 'Print the completions of a shell'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "man" -d 'Print a man page'
complete -c dlock -n "__fish_dlock_using_subcommand run" -s k -l key -d 'The lock\'s name; -k again for more, all or none' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -s w -l wait -d 'Wait up to D for the lock: 30s, 5m, forever' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l permits -d 'Be one of at most N holders (= --limit)' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -s E -l conflict-exit-code -d 'The exit status when the lock is busy [75]' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l ttl -d 'The TTL of the lease; dlock renews it [60s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l grace -d 'Time between TERM and KILL [10s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l max-runtime -d 'Stop the command after D; status 124' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l once-per -d 'Run once per D, the period of the schedule' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l reason -d 'Why --anyway, for the history' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l skew-guard -d 'Refuse tries from other hosts for D after the start, since clocks differ [5s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l at-least -d 'Keep the lock for at least D from its start' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l keep -d 'How long the success of --once is remembered' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l done-exit-code -d 'The exit status when --once or --once-per finds the work done [that of -E]' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l retry-failed -d 'How often a failed run may be repeated [0 with --once-per, no limit with --once]' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l warn-held -d 'Warn if the lock that makes this run skip has been held for longer [1h]' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -s c -d 'A line for /bin/sh to run instead of COMMAND' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l describe -d 'A note that inspect and list show' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l status-file -d 'Write how it ended to a file, as JSON' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l metrics-file -d 'Count this run in a file for Prometheus\' textfile collector (*.prom)' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l on-event -d 'A line for /bin/sh, run for each event of the run with a JSON object on its stdin' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l on-lost -d 'If the lock is lost: kill, signal:SIG before the KILL, or continue [kill]' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l leftover -d 'Processes that outlive the command: wait for them, kill them, or leave them [wait]' -r -f -a "wait\t''
kill\t''
leave\t''"
complete -c dlock -n "__fish_dlock_using_subcommand run" -l contain -d 'How the command\'s processes are kept together [auto]' -r -f -a "auto\t''
group\t''
cgroup\t''"
complete -c dlock -n "__fish_dlock_using_subcommand run" -l log -d 'Lines for syslog; auto: only if stderr is no terminal [auto]' -r -f -a "auto\t''
off\t''
json\t''"
complete -c dlock -n "__fish_dlock_using_subcommand run" -s b -l backend -d 'The store: a URL, or its name in the configuration' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l config -d 'The configuration file' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l password-file -d 'A file that holds the store\'s password' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l backend-timeout -d 'How long the store may take to answer [5s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l host -d 'This machine\'s name in leases' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l namespace -d 'The prefix of every key in the store [dlock]' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -s o -l output -d 'How to print; on-failure: run shows the command\'s output only if the run failed' -r -f -a "human\t''
json\t''
on-failure\t''"
complete -c dlock -n "__fish_dlock_using_subcommand run" -l color -d 'Colours on the terminal' -r -f -a "auto\t''
always\t''
never\t''"
complete -c dlock -n "__fish_dlock_using_subcommand run" -s n -l nonblock -d 'Do not wait (the default, and -w 0)'
complete -c dlock -n "__fish_dlock_using_subcommand run" -s s -l shared -d 'Hold it together with other readers'
complete -c dlock -n "__fish_dlock_using_subcommand run" -l fair -d 'Serve waiters in order; else newcomers overtake'
complete -c dlock -n "__fish_dlock_using_subcommand run" -s x -s e -l exclusive -d 'Hold the lock alone (the default)'
complete -c dlock -n "__fish_dlock_using_subcommand run" -l anyway -d 'Run past skew guard, at-least, --once and --once-per, never past a holder; needs --reason'
complete -c dlock -n "__fish_dlock_using_subcommand run" -l once -d 'Retry until one run succeeds, then refuse for as long as --keep says'
complete -c dlock -n "__fish_dlock_using_subcommand run" -l retry-crashed -d 'Repeat a run with an unknown outcome (--once-per, --once)'
complete -c dlock -n "__fish_dlock_using_subcommand run" -l no-metadata -d 'Store no host, user or command'
complete -c dlock -n "__fish_dlock_using_subcommand run" -l no-reentrant -d 'Refuse to enter the lock of a `dlock run` of the same key around this one'
complete -c dlock -n "__fish_dlock_using_subcommand run" -l insecure-argv -d 'Allow a password in the --backend URL'
complete -c dlock -n "__fish_dlock_using_subcommand run" -l json -d 'Print one JSON object (= -o json)'
complete -c dlock -n "__fish_dlock_using_subcommand run" -s q -l quiet -d 'No notices'
complete -c dlock -n "__fish_dlock_using_subcommand run" -s v -l verbose -d 'Print the causes of an error'
complete -c dlock -n "__fish_dlock_using_subcommand run" -s h -l help -d 'Print help; --help: all options'
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -l ttl -d 'How long it is held unless renewed or released' -r
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -l while-pid -d 'Keep it while PID lives; TERM to it on loss' -r
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -s k -l key -d 'The name of one of several locks: all are taken, or none' -r
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -s w -l wait -d 'Wait up to D for the lock: 30s, 5m, forever' -r
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -l permits -d 'Be one of at most N holders (= --limit)' -r
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -s E -l conflict-exit-code -d 'The exit status when the lock is busy [75]' -r
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -l describe -d 'A note that inspect and list show' -r
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -s b -l backend -d 'The store: a URL, or its name in the configuration' -r
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -l config -d 'The configuration file' -r
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -l password-file -d 'A file that holds the store\'s password' -r
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -l backend-timeout -d 'How long the store may take to answer [5s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -l host -d 'This machine\'s name in leases' -r
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -l namespace -d 'The prefix of every key in the store [dlock]' -r
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -s o -l output -d 'How to print; on-failure: run shows the command\'s output only if the run failed' -r -f -a "human\t''
json\t''
on-failure\t''"
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -l color -d 'Colours on the terminal' -r -f -a "auto\t''
always\t''
never\t''"
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -s n -l nonblock -d 'Do not wait (the default, and -w 0)'
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -s s -l shared -d 'Hold it together with other readers'
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -l fair -d 'Serve waiters in order; else newcomers overtake'
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -s x -s e -l exclusive -d 'Hold the lock alone (the default)'
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -l no-metadata -d 'Store no host, user or command'
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -l insecure-argv -d 'Allow a password in the --backend URL'
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -l json -d 'Print one JSON object (= -o json)'
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -s q -l quiet -d 'No notices'
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -s v -l verbose -d 'Print the causes of an error'
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -s h -l help -d 'Print help; --help: all options'
complete -c dlock -n "__fish_dlock_using_subcommand renew" -s k -l key -d 'The lock\'s name, if it begins with a dash for example' -r
complete -c dlock -n "__fish_dlock_using_subcommand renew" -l token -d 'The token; @FILE reads it from a file, @- from stdin' -r
complete -c dlock -n "__fish_dlock_using_subcommand renew" -l ttl -d 'The lease from now on [the TTL that it was taken with]' -r
complete -c dlock -n "__fish_dlock_using_subcommand renew" -s b -l backend -d 'The store: a URL, or its name in the configuration' -r
complete -c dlock -n "__fish_dlock_using_subcommand renew" -l config -d 'The configuration file' -r
complete -c dlock -n "__fish_dlock_using_subcommand renew" -l password-file -d 'A file that holds the store\'s password' -r
complete -c dlock -n "__fish_dlock_using_subcommand renew" -l backend-timeout -d 'How long the store may take to answer [5s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand renew" -l host -d 'This machine\'s name in leases' -r
complete -c dlock -n "__fish_dlock_using_subcommand renew" -l namespace -d 'The prefix of every key in the store [dlock]' -r
complete -c dlock -n "__fish_dlock_using_subcommand renew" -s o -l output -d 'How to print; on-failure: run shows the command\'s output only if the run failed' -r -f -a "human\t''
json\t''
on-failure\t''"
complete -c dlock -n "__fish_dlock_using_subcommand renew" -l color -d 'Colours on the terminal' -r -f -a "auto\t''
always\t''
never\t''"
complete -c dlock -n "__fish_dlock_using_subcommand renew" -l insecure-argv -d 'Allow a password in the --backend URL'
complete -c dlock -n "__fish_dlock_using_subcommand renew" -l json -d 'Print one JSON object (= -o json)'
complete -c dlock -n "__fish_dlock_using_subcommand renew" -s q -l quiet -d 'No notices'
complete -c dlock -n "__fish_dlock_using_subcommand renew" -s v -l verbose -d 'Print the causes of an error'
complete -c dlock -n "__fish_dlock_using_subcommand renew" -s h -l help -d 'Print help; --help: all options'
complete -c dlock -n "__fish_dlock_using_subcommand verify" -s k -l key -d 'The lock\'s name, if it begins with a dash for example' -r
complete -c dlock -n "__fish_dlock_using_subcommand verify" -l token -d 'The token; @FILE reads it from a file, @- from stdin' -r
complete -c dlock -n "__fish_dlock_using_subcommand verify" -s b -l backend -d 'The store: a URL, or its name in the configuration' -r
complete -c dlock -n "__fish_dlock_using_subcommand verify" -l config -d 'The configuration file' -r
complete -c dlock -n "__fish_dlock_using_subcommand verify" -l password-file -d 'A file that holds the store\'s password' -r
complete -c dlock -n "__fish_dlock_using_subcommand verify" -l backend-timeout -d 'How long the store may take to answer [5s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand verify" -l host -d 'This machine\'s name in leases' -r
complete -c dlock -n "__fish_dlock_using_subcommand verify" -l namespace -d 'The prefix of every key in the store [dlock]' -r
complete -c dlock -n "__fish_dlock_using_subcommand verify" -s o -l output -d 'How to print; on-failure: run shows the command\'s output only if the run failed' -r -f -a "human\t''
json\t''
on-failure\t''"
complete -c dlock -n "__fish_dlock_using_subcommand verify" -l color -d 'Colours on the terminal' -r -f -a "auto\t''
always\t''
never\t''"
complete -c dlock -n "__fish_dlock_using_subcommand verify" -l insecure-argv -d 'Allow a password in the --backend URL'
complete -c dlock -n "__fish_dlock_using_subcommand verify" -l json -d 'Print one JSON object (= -o json)'
complete -c dlock -n "__fish_dlock_using_subcommand verify" -s q -l quiet -d 'No notices'
complete -c dlock -n "__fish_dlock_using_subcommand verify" -s v -l verbose -d 'Print the causes of an error'
complete -c dlock -n "__fish_dlock_using_subcommand verify" -s h -l help -d 'Print help; --help: all options'
complete -c dlock -n "__fish_dlock_using_subcommand release" -s k -l key -d 'The lock\'s name, if it begins with a dash for example' -r
complete -c dlock -n "__fish_dlock_using_subcommand release" -l token -d 'The token; @FILE reads it from a file, @- from stdin' -r
complete -c dlock -n "__fish_dlock_using_subcommand release" -l fence -d 'Break only this hold; the last 4 digits are enough' -r
complete -c dlock -n "__fish_dlock_using_subcommand release" -l reason -d 'The reason, for the history and the holder' -r
complete -c dlock -n "__fish_dlock_using_subcommand release" -s b -l backend -d 'The store: a URL, or its name in the configuration' -r
complete -c dlock -n "__fish_dlock_using_subcommand release" -l config -d 'The configuration file' -r
complete -c dlock -n "__fish_dlock_using_subcommand release" -l password-file -d 'A file that holds the store\'s password' -r
complete -c dlock -n "__fish_dlock_using_subcommand release" -l backend-timeout -d 'How long the store may take to answer [5s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand release" -l host -d 'This machine\'s name in leases' -r
complete -c dlock -n "__fish_dlock_using_subcommand release" -l namespace -d 'The prefix of every key in the store [dlock]' -r
complete -c dlock -n "__fish_dlock_using_subcommand release" -s o -l output -d 'How to print; on-failure: run shows the command\'s output only if the run failed' -r -f -a "human\t''
json\t''
on-failure\t''"
complete -c dlock -n "__fish_dlock_using_subcommand release" -l color -d 'Colours on the terminal' -r -f -a "auto\t''
always\t''
never\t''"
complete -c dlock -n "__fish_dlock_using_subcommand release" -l force -d 'Break the lock, as dlock break does'
complete -c dlock -n "__fish_dlock_using_subcommand release" -s y -l yes -d 'Do not ask'
complete -c dlock -n "__fish_dlock_using_subcommand release" -l now -d 'Free the lock at once, if its holder is dead'
complete -c dlock -n "__fish_dlock_using_subcommand release" -l insecure-argv -d 'Allow a password in the --backend URL'
complete -c dlock -n "__fish_dlock_using_subcommand release" -l json -d 'Print one JSON object (= -o json)'
complete -c dlock -n "__fish_dlock_using_subcommand release" -s q -l quiet -d 'No notices'
complete -c dlock -n "__fish_dlock_using_subcommand release" -s v -l verbose -d 'Print the causes of an error'
complete -c dlock -n "__fish_dlock_using_subcommand release" -s h -l help -d 'Print help; --help: all options'
complete -c dlock -n "__fish_dlock_using_subcommand hold" -s k -l key -d 'The name of one of several locks: all are taken, or none' -r
complete -c dlock -n "__fish_dlock_using_subcommand hold" -s w -l wait -d 'Wait up to D for the lock: 30s, 5m, forever' -r
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l permits -d 'Be one of at most N holders (= --limit)' -r
complete -c dlock -n "__fish_dlock_using_subcommand hold" -s E -l conflict-exit-code -d 'The exit status when the lock is busy [75]' -r
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l describe -d 'A note that inspect and list show' -r
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l while-pid -d 'Hold it for as long as this process lives' -r
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l ttl -d 'The TTL of the lease; dlock renews it [60s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand hold" -s b -l backend -d 'The store: a URL, or its name in the configuration' -r
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l config -d 'The configuration file' -r
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l password-file -d 'A file that holds the store\'s password' -r
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l backend-timeout -d 'How long the store may take to answer [5s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l host -d 'This machine\'s name in leases' -r
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l namespace -d 'The prefix of every key in the store [dlock]' -r
complete -c dlock -n "__fish_dlock_using_subcommand hold" -s o -l output -d 'How to print; on-failure: run shows the command\'s output only if the run failed' -r -f -a "human\t''
json\t''
on-failure\t''"
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l color -d 'Colours on the terminal' -r -f -a "auto\t''
always\t''
never\t''"
complete -c dlock -n "__fish_dlock_using_subcommand hold" -s n -l nonblock -d 'Do not wait (the default, and -w 0)'
complete -c dlock -n "__fish_dlock_using_subcommand hold" -s s -l shared -d 'Hold it together with other readers'
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l fair -d 'Serve waiters in order; else newcomers overtake'
complete -c dlock -n "__fish_dlock_using_subcommand hold" -s x -s e -l exclusive -d 'Hold the lock alone (the default)'
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l no-metadata -d 'Store no host, user or command'
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l until-signal -d 'Hold it until a signal comes instead'
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l insecure-argv -d 'Allow a password in the --backend URL'
complete -c dlock -n "__fish_dlock_using_subcommand hold" -l json -d 'Print one JSON object (= -o json)'
complete -c dlock -n "__fish_dlock_using_subcommand hold" -s q -l quiet -d 'No notices'
complete -c dlock -n "__fish_dlock_using_subcommand hold" -s v -l verbose -d 'Print the causes of an error'
complete -c dlock -n "__fish_dlock_using_subcommand hold" -s h -l help -d 'Print help; --help: all options'
complete -c dlock -n "__fish_dlock_using_subcommand inspect" -s k -l key -d 'The lock\'s name, if it begins with a dash for example' -r
complete -c dlock -n "__fish_dlock_using_subcommand inspect" -s b -l backend -d 'The store: a URL, or its name in the configuration' -r
complete -c dlock -n "__fish_dlock_using_subcommand inspect" -l config -d 'The configuration file' -r
complete -c dlock -n "__fish_dlock_using_subcommand inspect" -l password-file -d 'A file that holds the store\'s password' -r
complete -c dlock -n "__fish_dlock_using_subcommand inspect" -l backend-timeout -d 'How long the store may take to answer [5s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand inspect" -l host -d 'This machine\'s name in leases' -r
complete -c dlock -n "__fish_dlock_using_subcommand inspect" -l namespace -d 'The prefix of every key in the store [dlock]' -r
complete -c dlock -n "__fish_dlock_using_subcommand inspect" -s o -l output -d 'How to print; on-failure: run shows the command\'s output only if the run failed' -r -f -a "human\t''
json\t''
on-failure\t''"
complete -c dlock -n "__fish_dlock_using_subcommand inspect" -l color -d 'Colours on the terminal' -r -f -a "auto\t''
always\t''
never\t''"
complete -c dlock -n "__fish_dlock_using_subcommand inspect" -l insecure-argv -d 'Allow a password in the --backend URL'
complete -c dlock -n "__fish_dlock_using_subcommand inspect" -l json -d 'Print one JSON object (= -o json)'
complete -c dlock -n "__fish_dlock_using_subcommand inspect" -s q -l quiet -d 'No notices'
complete -c dlock -n "__fish_dlock_using_subcommand inspect" -s v -l verbose -d 'Print the causes of an error'
complete -c dlock -n "__fish_dlock_using_subcommand inspect" -s h -l help -d 'Print help; --help: all options'
complete -c dlock -n "__fish_dlock_using_subcommand names" -s k -l key -d 'The lock\'s name, if it begins with a dash for example' -r
complete -c dlock -n "__fish_dlock_using_subcommand names" -s b -l backend -d 'The store: a URL, or its name in the configuration' -r
complete -c dlock -n "__fish_dlock_using_subcommand names" -l config -d 'The configuration file' -r
complete -c dlock -n "__fish_dlock_using_subcommand names" -l password-file -d 'A file that holds the store\'s password' -r
complete -c dlock -n "__fish_dlock_using_subcommand names" -l backend-timeout -d 'How long the store may take to answer [5s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand names" -l host -d 'This machine\'s name in leases' -r
complete -c dlock -n "__fish_dlock_using_subcommand names" -l namespace -d 'The prefix of every key in the store [dlock]' -r
complete -c dlock -n "__fish_dlock_using_subcommand names" -s o -l output -d 'How to print; on-failure: run shows the command\'s output only if the run failed' -r -f -a "human\t''
json\t''
on-failure\t''"
complete -c dlock -n "__fish_dlock_using_subcommand names" -l color -d 'Colours on the terminal' -r -f -a "auto\t''
always\t''
never\t''"
complete -c dlock -n "__fish_dlock_using_subcommand names" -l insecure-argv -d 'Allow a password in the --backend URL'
complete -c dlock -n "__fish_dlock_using_subcommand names" -l json -d 'Print one JSON object (= -o json)'
complete -c dlock -n "__fish_dlock_using_subcommand names" -s q -l quiet -d 'No notices'
complete -c dlock -n "__fish_dlock_using_subcommand names" -s v -l verbose -d 'Print the causes of an error'
complete -c dlock -n "__fish_dlock_using_subcommand names" -s h -l help -d 'Print help; --help: all options'
complete -c dlock -n "__fish_dlock_using_subcommand list" -l sort -d 'Order by key, since, expires, wait or failed [key]' -r -f -a "key\t''
since\t''
expires\t''
wait\t''
failed\t''"
complete -c dlock -n "__fish_dlock_using_subcommand list" -l held-longer-than -d 'Only locks that are held for longer than this' -r
complete -c dlock -n "__fish_dlock_using_subcommand list" -l user -d 'Only runs of this user' -r
complete -c dlock -n "__fish_dlock_using_subcommand list" -l since -d 'Only runs that started within D' -r
complete -c dlock -n "__fish_dlock_using_subcommand list" -l watch -d 'Again every D [2s]; as JSON off a terminal' -r
complete -c dlock -n "__fish_dlock_using_subcommand list" -s b -l backend -d 'The store: a URL, or its name in the configuration' -r
complete -c dlock -n "__fish_dlock_using_subcommand list" -l config -d 'The configuration file' -r
complete -c dlock -n "__fish_dlock_using_subcommand list" -l password-file -d 'A file that holds the store\'s password' -r
complete -c dlock -n "__fish_dlock_using_subcommand list" -l backend-timeout -d 'How long the store may take to answer [5s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand list" -l host -d 'This machine\'s name in leases' -r
complete -c dlock -n "__fish_dlock_using_subcommand list" -l namespace -d 'The prefix of every key in the store [dlock]' -r
complete -c dlock -n "__fish_dlock_using_subcommand list" -s o -l output -d 'How to print; on-failure: run shows the command\'s output only if the run failed' -r -f -a "human\t''
json\t''
on-failure\t''"
complete -c dlock -n "__fish_dlock_using_subcommand list" -l color -d 'Colours on the terminal' -r -f -a "auto\t''
always\t''
never\t''"
complete -c dlock -n "__fish_dlock_using_subcommand list" -s a -l all -d 'Every key that the store knows, with its last run'
complete -c dlock -n "__fish_dlock_using_subcommand list" -l failed -d 'Only runs that ended badly'
complete -c dlock -n "__fish_dlock_using_subcommand list" -l insecure-argv -d 'Allow a password in the --backend URL'
complete -c dlock -n "__fish_dlock_using_subcommand list" -l json -d 'Print one JSON object (= -o json)'
complete -c dlock -n "__fish_dlock_using_subcommand list" -s q -l quiet -d 'No notices'
complete -c dlock -n "__fish_dlock_using_subcommand list" -s v -l verbose -d 'Print the causes of an error'
complete -c dlock -n "__fish_dlock_using_subcommand list" -s h -l help -d 'Print help; --help: all options'
complete -c dlock -n "__fish_dlock_using_subcommand history" -s k -l key -d 'The lock\'s name, if it begins with a dash for example' -r
complete -c dlock -n "__fish_dlock_using_subcommand history" -s n -l last -d 'Show so many runs at most [20; all with --json]' -r
complete -c dlock -n "__fish_dlock_using_subcommand history" -l user -d 'Only runs of this user' -r
complete -c dlock -n "__fish_dlock_using_subcommand history" -l since -d 'Only runs that started within D' -r
complete -c dlock -n "__fish_dlock_using_subcommand history" -s b -l backend -d 'The store: a URL, or its name in the configuration' -r
complete -c dlock -n "__fish_dlock_using_subcommand history" -l config -d 'The configuration file' -r
complete -c dlock -n "__fish_dlock_using_subcommand history" -l password-file -d 'A file that holds the store\'s password' -r
complete -c dlock -n "__fish_dlock_using_subcommand history" -l backend-timeout -d 'How long the store may take to answer [5s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand history" -l host -d 'This machine\'s name in leases' -r
complete -c dlock -n "__fish_dlock_using_subcommand history" -l namespace -d 'The prefix of every key in the store [dlock]' -r
complete -c dlock -n "__fish_dlock_using_subcommand history" -s o -l output -d 'How to print; on-failure: run shows the command\'s output only if the run failed' -r -f -a "human\t''
json\t''
on-failure\t''"
complete -c dlock -n "__fish_dlock_using_subcommand history" -l color -d 'Colours on the terminal' -r -f -a "auto\t''
always\t''
never\t''"
complete -c dlock -n "__fish_dlock_using_subcommand history" -l timeline -d 'Draw hosts against time'
complete -c dlock -n "__fish_dlock_using_subcommand history" -l failed -d 'Only runs that ended badly'
complete -c dlock -n "__fish_dlock_using_subcommand history" -l insecure-argv -d 'Allow a password in the --backend URL'
complete -c dlock -n "__fish_dlock_using_subcommand history" -l json -d 'Print one JSON object (= -o json)'
complete -c dlock -n "__fish_dlock_using_subcommand history" -s q -l quiet -d 'No notices'
complete -c dlock -n "__fish_dlock_using_subcommand history" -s v -l verbose -d 'Print the causes of an error'
complete -c dlock -n "__fish_dlock_using_subcommand history" -s h -l help -d 'Print help; --help: all options'
complete -c dlock -n "__fish_dlock_using_subcommand report" -l to -d 'Replace this file in one step, instead of printing the page' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand report" -s b -l backend -d 'The store: a URL, or its name in the configuration' -r
complete -c dlock -n "__fish_dlock_using_subcommand report" -l config -d 'The configuration file' -r
complete -c dlock -n "__fish_dlock_using_subcommand report" -l password-file -d 'A file that holds the store\'s password' -r
complete -c dlock -n "__fish_dlock_using_subcommand report" -l backend-timeout -d 'How long the store may take to answer [5s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand report" -l host -d 'This machine\'s name in leases' -r
complete -c dlock -n "__fish_dlock_using_subcommand report" -l namespace -d 'The prefix of every key in the store [dlock]' -r
complete -c dlock -n "__fish_dlock_using_subcommand report" -s o -l output -d 'How to print; on-failure: run shows the command\'s output only if the run failed' -r -f -a "human\t''
json\t''
on-failure\t''"
complete -c dlock -n "__fish_dlock_using_subcommand report" -l color -d 'Colours on the terminal' -r -f -a "auto\t''
always\t''
never\t''"
complete -c dlock -n "__fish_dlock_using_subcommand report" -l insecure-argv -d 'Allow a password in the --backend URL'
complete -c dlock -n "__fish_dlock_using_subcommand report" -l json -d 'Print one JSON object (= -o json)'
complete -c dlock -n "__fish_dlock_using_subcommand report" -s q -l quiet -d 'No notices'
complete -c dlock -n "__fish_dlock_using_subcommand report" -s v -l verbose -d 'Print the causes of an error'
complete -c dlock -n "__fish_dlock_using_subcommand report" -s h -l help -d 'Print help; --help: all options'
complete -c dlock -n "__fish_dlock_using_subcommand break" -s k -l key -d 'The lock\'s name, if it begins with a dash for example' -r
complete -c dlock -n "__fish_dlock_using_subcommand break" -l fence -d 'Break only this hold; the last 4 digits are enough' -r
complete -c dlock -n "__fish_dlock_using_subcommand break" -l reason -d 'The reason, for the history and the holder' -r
complete -c dlock -n "__fish_dlock_using_subcommand break" -s b -l backend -d 'The store: a URL, or its name in the configuration' -r
complete -c dlock -n "__fish_dlock_using_subcommand break" -l config -d 'The configuration file' -r
complete -c dlock -n "__fish_dlock_using_subcommand break" -l password-file -d 'A file that holds the store\'s password' -r
complete -c dlock -n "__fish_dlock_using_subcommand break" -l backend-timeout -d 'How long the store may take to answer [5s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand break" -l host -d 'This machine\'s name in leases' -r
complete -c dlock -n "__fish_dlock_using_subcommand break" -l namespace -d 'The prefix of every key in the store [dlock]' -r
complete -c dlock -n "__fish_dlock_using_subcommand break" -s o -l output -d 'How to print; on-failure: run shows the command\'s output only if the run failed' -r -f -a "human\t''
json\t''
on-failure\t''"
complete -c dlock -n "__fish_dlock_using_subcommand break" -l color -d 'Colours on the terminal' -r -f -a "auto\t''
always\t''
never\t''"
complete -c dlock -n "__fish_dlock_using_subcommand break" -s y -l yes -d 'Do not ask'
complete -c dlock -n "__fish_dlock_using_subcommand break" -l now -d 'Free the lock at once, if its holder is dead'
complete -c dlock -n "__fish_dlock_using_subcommand break" -l insecure-argv -d 'Allow a password in the --backend URL'
complete -c dlock -n "__fish_dlock_using_subcommand break" -l json -d 'Print one JSON object (= -o json)'
complete -c dlock -n "__fish_dlock_using_subcommand break" -s q -l quiet -d 'No notices'
complete -c dlock -n "__fish_dlock_using_subcommand break" -s v -l verbose -d 'Print the causes of an error'
complete -c dlock -n "__fish_dlock_using_subcommand break" -s h -l help -d 'Print help; --help: all options'
complete -c dlock -n "__fish_dlock_using_subcommand explain" -s k -l key -d 'The lock\'s name; -k again for more, all or none' -r
complete -c dlock -n "__fish_dlock_using_subcommand explain" -s w -l wait -d 'Wait up to D for the lock: 30s, 5m, forever' -r
complete -c dlock -n "__fish_dlock_using_subcommand explain" -l permits -d 'Be one of at most N holders (= --limit)' -r
complete -c dlock -n "__fish_dlock_using_subcommand explain" -s E -l conflict-exit-code -d 'The exit status when the lock is busy [75]' -r
complete -c dlock -n "__fish_dlock_using_subcommand explain" -l ttl -d 'The TTL of the lease; dlock renews it [60s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand explain" -l grace -d 'Time between TERM and KILL [10s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand explain" -l max-runtime -d 'Stop the command after D; status 124' -r
complete -c dlock -n "__fish_dlock_using_subcommand explain" -l once-per -d 'Run once per D, the period of the schedule' -r
complete -c dlock -n "__fish_dlock_using_subcommand explain" -l reason -d 'Why --anyway, for the history' -r
complete -c dlock -n "__fish_dlock_using_subcommand explain" -l skew-guard -d 'Refuse tries from other hosts for D after the start, since clocks differ [5s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand explain" -l at-least -d 'Keep the lock for at least D from its start' -r
complete -c dlock -n "__fish_dlock_using_subcommand explain" -l keep -d 'How long the success of --once is remembered' -r
complete -c dlock -n "__fish_dlock_using_subcommand explain" -l done-exit-code -d 'The exit status when --once or --once-per finds the work done [that of -E]' -r
complete -c dlock -n "__fish_dlock_using_subcommand explain" -l retry-failed -d 'How often a failed run may be repeated [0 with --once-per, no limit with --once]' -r
complete -c dlock -n "__fish_dlock_using_subcommand explain" -l warn-held -d 'Warn if the lock that makes this run skip has been held for longer [1h]' -r
complete -c dlock -n "__fish_dlock_using_subcommand explain" -s c -d 'A line for /bin/sh to run instead of COMMAND' -r
complete -c dlock -n "__fish_dlock_using_subcommand explain" -l describe -d 'A note that inspect and list show' -r
complete -c dlock -n "__fish_dlock_using_subcommand explain" -l status-file -d 'Write how it ended to a file, as JSON' -r
complete -c dlock -n "__fish_dlock_using_subcommand explain" -l metrics-file -d 'Count this run in a file for Prometheus\' textfile collector (*.prom)' -r
complete -c dlock -n "__fish_dlock_using_subcommand explain" -l on-event -d 'A line for /bin/sh, run for each event of the run with a JSON object on its stdin' -r
complete -c dlock -n "__fish_dlock_using_subcommand explain" -l on-lost -d 'If the lock is lost: kill, signal:SIG before the KILL, or continue [kill]' -r
complete -c dlock -n "__fish_dlock_using_subcommand explain" -l leftover -d 'Processes that outlive the command: wait for them, kill them, or leave them [wait]' -r -f -a "wait\t''
kill\t''
leave\t''"
complete -c dlock -n "__fish_dlock_using_subcommand explain" -l contain -d 'How the command\'s processes are kept together [auto]' -r -f -a "auto\t''
group\t''
cgroup\t''"
complete -c dlock -n "__fish_dlock_using_subcommand explain" -l log -d 'Lines for syslog; auto: only if stderr is no terminal [auto]' -r -f -a "auto\t''
off\t''
json\t''"
complete -c dlock -n "__fish_dlock_using_subcommand explain" -s b -l backend -d 'The store: a URL, or its name in the configuration' -r
complete -c dlock -n "__fish_dlock_using_subcommand explain" -l config -d 'The configuration file' -r
complete -c dlock -n "__fish_dlock_using_subcommand explain" -l password-file -d 'A file that holds the store\'s password' -r
complete -c dlock -n "__fish_dlock_using_subcommand explain" -l backend-timeout -d 'How long the store may take to answer [5s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand explain" -l host -d 'This machine\'s name in leases' -r
complete -c dlock -n "__fish_dlock_using_subcommand explain" -l namespace -d 'The prefix of every key in the store [dlock]' -r
complete -c dlock -n "__fish_dlock_using_subcommand explain" -s o -l output -d 'How to print; on-failure: run shows the command\'s output only if the run failed' -r -f -a "human\t''
json\t''
on-failure\t''"
complete -c dlock -n "__fish_dlock_using_subcommand explain" -l color -d 'Colours on the terminal' -r -f -a "auto\t''
always\t''
never\t''"
complete -c dlock -n "__fish_dlock_using_subcommand explain" -l all -d 'Show the settings that are at their defaults too'
complete -c dlock -n "__fish_dlock_using_subcommand explain" -s n -l nonblock -d 'Do not wait (the default, and -w 0)'
complete -c dlock -n "__fish_dlock_using_subcommand explain" -s s -l shared -d 'Hold it together with other readers'
complete -c dlock -n "__fish_dlock_using_subcommand explain" -l fair -d 'Serve waiters in order; else newcomers overtake'
complete -c dlock -n "__fish_dlock_using_subcommand explain" -s x -s e -l exclusive -d 'Hold the lock alone (the default)'
complete -c dlock -n "__fish_dlock_using_subcommand explain" -l anyway -d 'Run past skew guard, at-least, --once and --once-per, never past a holder; needs --reason'
complete -c dlock -n "__fish_dlock_using_subcommand explain" -l once -d 'Retry until one run succeeds, then refuse for as long as --keep says'
complete -c dlock -n "__fish_dlock_using_subcommand explain" -l retry-crashed -d 'Repeat a run with an unknown outcome (--once-per, --once)'
complete -c dlock -n "__fish_dlock_using_subcommand explain" -l no-metadata -d 'Store no host, user or command'
complete -c dlock -n "__fish_dlock_using_subcommand explain" -l no-reentrant -d 'Refuse to enter the lock of a `dlock run` of the same key around this one'
complete -c dlock -n "__fish_dlock_using_subcommand explain" -l insecure-argv -d 'Allow a password in the --backend URL'
complete -c dlock -n "__fish_dlock_using_subcommand explain" -l json -d 'Print one JSON object (= -o json)'
complete -c dlock -n "__fish_dlock_using_subcommand explain" -s q -l quiet -d 'No notices'
complete -c dlock -n "__fish_dlock_using_subcommand explain" -s v -l verbose -d 'Print the causes of an error'
complete -c dlock -n "__fish_dlock_using_subcommand explain" -s h -l help -d 'Print help; --help: all options'
complete -c dlock -n "__fish_dlock_using_subcommand forget" -s k -l key -d 'The lock\'s name, if it begins with a dash for example' -r
complete -c dlock -n "__fish_dlock_using_subcommand forget" -l reason -d 'Why, for the history' -r
complete -c dlock -n "__fish_dlock_using_subcommand forget" -s b -l backend -d 'The store: a URL, or its name in the configuration' -r
complete -c dlock -n "__fish_dlock_using_subcommand forget" -l config -d 'The configuration file' -r
complete -c dlock -n "__fish_dlock_using_subcommand forget" -l password-file -d 'A file that holds the store\'s password' -r
complete -c dlock -n "__fish_dlock_using_subcommand forget" -l backend-timeout -d 'How long the store may take to answer [5s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand forget" -l host -d 'This machine\'s name in leases' -r
complete -c dlock -n "__fish_dlock_using_subcommand forget" -l namespace -d 'The prefix of every key in the store [dlock]' -r
complete -c dlock -n "__fish_dlock_using_subcommand forget" -s o -l output -d 'How to print; on-failure: run shows the command\'s output only if the run failed' -r -f -a "human\t''
json\t''
on-failure\t''"
complete -c dlock -n "__fish_dlock_using_subcommand forget" -l color -d 'Colours on the terminal' -r -f -a "auto\t''
always\t''
never\t''"
complete -c dlock -n "__fish_dlock_using_subcommand forget" -s y -l yes -d 'Do not ask'
complete -c dlock -n "__fish_dlock_using_subcommand forget" -l insecure-argv -d 'Allow a password in the --backend URL'
complete -c dlock -n "__fish_dlock_using_subcommand forget" -l json -d 'Print one JSON object (= -o json)'
complete -c dlock -n "__fish_dlock_using_subcommand forget" -s q -l quiet -d 'No notices'
complete -c dlock -n "__fish_dlock_using_subcommand forget" -s v -l verbose -d 'Print the causes of an error'
complete -c dlock -n "__fish_dlock_using_subcommand forget" -s h -l help -d 'Print help; --help: all options'
complete -c dlock -n "__fish_dlock_using_subcommand doctor" -l ttl -d 'The TTL to judge by [60s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand doctor" -l print-grants -d 'Only print the least rights of this role' -r -f -a "run\t''
view\t''
break\t''"
complete -c dlock -n "__fish_dlock_using_subcommand doctor" -s b -l backend -d 'The store: a URL, or its name in the configuration' -r
complete -c dlock -n "__fish_dlock_using_subcommand doctor" -l config -d 'The configuration file' -r
complete -c dlock -n "__fish_dlock_using_subcommand doctor" -l password-file -d 'A file that holds the store\'s password' -r
complete -c dlock -n "__fish_dlock_using_subcommand doctor" -l backend-timeout -d 'How long the store may take to answer [5s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand doctor" -l host -d 'This machine\'s name in leases' -r
complete -c dlock -n "__fish_dlock_using_subcommand doctor" -l namespace -d 'The prefix of every key in the store [dlock]' -r
complete -c dlock -n "__fish_dlock_using_subcommand doctor" -s o -l output -d 'How to print; on-failure: run shows the command\'s output only if the run failed' -r -f -a "human\t''
json\t''
on-failure\t''"
complete -c dlock -n "__fish_dlock_using_subcommand doctor" -l color -d 'Colours on the terminal' -r -f -a "auto\t''
always\t''
never\t''"
complete -c dlock -n "__fish_dlock_using_subcommand doctor" -l insecure-argv -d 'Allow a password in the --backend URL'
complete -c dlock -n "__fish_dlock_using_subcommand doctor" -l json -d 'Print one JSON object (= -o json)'
complete -c dlock -n "__fish_dlock_using_subcommand doctor" -s q -l quiet -d 'No notices'
complete -c dlock -n "__fish_dlock_using_subcommand doctor" -s v -l verbose -d 'Print the causes of an error'
complete -c dlock -n "__fish_dlock_using_subcommand doctor" -s h -l help -d 'Print help; --help: all options'
complete -c dlock -n "__fish_dlock_using_subcommand init" -s b -l backend -d 'The store: a URL, or its name in the configuration' -r
complete -c dlock -n "__fish_dlock_using_subcommand init" -l config -d 'The configuration file' -r
complete -c dlock -n "__fish_dlock_using_subcommand init" -l password-file -d 'A file that holds the store\'s password' -r
complete -c dlock -n "__fish_dlock_using_subcommand init" -l backend-timeout -d 'How long the store may take to answer [5s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand init" -l host -d 'This machine\'s name in leases' -r
complete -c dlock -n "__fish_dlock_using_subcommand init" -l namespace -d 'The prefix of every key in the store [dlock]' -r
complete -c dlock -n "__fish_dlock_using_subcommand init" -s o -l output -d 'How to print; on-failure: run shows the command\'s output only if the run failed' -r -f -a "human\t''
json\t''
on-failure\t''"
complete -c dlock -n "__fish_dlock_using_subcommand init" -l color -d 'Colours on the terminal' -r -f -a "auto\t''
always\t''
never\t''"
complete -c dlock -n "__fish_dlock_using_subcommand init" -l print -d 'Only show what would be done, in the store\'s language'
complete -c dlock -n "__fish_dlock_using_subcommand init" -l insecure-argv -d 'Allow a password in the --backend URL'
complete -c dlock -n "__fish_dlock_using_subcommand init" -l json -d 'Print one JSON object (= -o json)'
complete -c dlock -n "__fish_dlock_using_subcommand init" -s q -l quiet -d 'No notices'
complete -c dlock -n "__fish_dlock_using_subcommand init" -s v -l verbose -d 'Print the causes of an error'
complete -c dlock -n "__fish_dlock_using_subcommand init" -s h -l help -d 'Print help; --help: all options'
complete -c dlock -n "__fish_dlock_using_subcommand gc" -l older-than -d 'Remove records that were last used longer ago than D' -r
complete -c dlock -n "__fish_dlock_using_subcommand gc" -s b -l backend -d 'The store: a URL, or its name in the configuration' -r
complete -c dlock -n "__fish_dlock_using_subcommand gc" -l config -d 'The configuration file' -r
complete -c dlock -n "__fish_dlock_using_subcommand gc" -l password-file -d 'A file that holds the store\'s password' -r
complete -c dlock -n "__fish_dlock_using_subcommand gc" -l backend-timeout -d 'How long the store may take to answer [5s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand gc" -l host -d 'This machine\'s name in leases' -r
complete -c dlock -n "__fish_dlock_using_subcommand gc" -l namespace -d 'The prefix of every key in the store [dlock]' -r
complete -c dlock -n "__fish_dlock_using_subcommand gc" -s o -l output -d 'How to print; on-failure: run shows the command\'s output only if the run failed' -r -f -a "human\t''
json\t''
on-failure\t''"
complete -c dlock -n "__fish_dlock_using_subcommand gc" -l color -d 'Colours on the terminal' -r -f -a "auto\t''
always\t''
never\t''"
complete -c dlock -n "__fish_dlock_using_subcommand gc" -l insecure-argv -d 'Allow a password in the --backend URL'
complete -c dlock -n "__fish_dlock_using_subcommand gc" -l json -d 'Print one JSON object (= -o json)'
complete -c dlock -n "__fish_dlock_using_subcommand gc" -s q -l quiet -d 'No notices'
complete -c dlock -n "__fish_dlock_using_subcommand gc" -s v -l verbose -d 'Print the causes of an error'
complete -c dlock -n "__fish_dlock_using_subcommand gc" -s h -l help -d 'Print help; --help: all options'
complete -c dlock -n "__fish_dlock_using_subcommand completions" -s b -l backend -d 'The store: a URL, or its name in the configuration' -r
complete -c dlock -n "__fish_dlock_using_subcommand completions" -l config -d 'The configuration file' -r
complete -c dlock -n "__fish_dlock_using_subcommand completions" -l password-file -d 'A file that holds the store\'s password' -r
complete -c dlock -n "__fish_dlock_using_subcommand completions" -l backend-timeout -d 'How long the store may take to answer [5s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand completions" -l host -d 'This machine\'s name in leases' -r
complete -c dlock -n "__fish_dlock_using_subcommand completions" -l namespace -d 'The prefix of every key in the store [dlock]' -r
complete -c dlock -n "__fish_dlock_using_subcommand completions" -s o -l output -d 'How to print; on-failure: run shows the command\'s output only if the run failed' -r -f -a "human\t''
json\t''
on-failure\t''"
complete -c dlock -n "__fish_dlock_using_subcommand completions" -l color -d 'Colours on the terminal' -r -f -a "auto\t''
always\t''
never\t''"
complete -c dlock -n "__fish_dlock_using_subcommand completions" -l insecure-argv -d 'Allow a password in the --backend URL'
complete -c dlock -n "__fish_dlock_using_subcommand completions" -l json -d 'Print one JSON object (= -o json)'
complete -c dlock -n "__fish_dlock_using_subcommand completions" -s q -l quiet -d 'No notices'
complete -c dlock -n "__fish_dlock_using_subcommand completions" -s v -l verbose -d 'Print the causes of an error'
complete -c dlock -n "__fish_dlock_using_subcommand completions" -s h -l help -d 'Print help; --help: all options'
complete -c dlock -n "__fish_dlock_using_subcommand man" -s b -l backend -d 'The store: a URL, or its name in the configuration' -r
complete -c dlock -n "__fish_dlock_using_subcommand man" -l config -d 'The configuration file' -r
complete -c dlock -n "__fish_dlock_using_subcommand man" -l password-file -d 'A file that holds the store\'s password' -r
complete -c dlock -n "__fish_dlock_using_subcommand man" -l backend-timeout -d 'How long the store may take to answer [5s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand man" -l host -d 'This machine\'s name in leases' -r
complete -c dlock -n "__fish_dlock_using_subcommand man" -l namespace -d 'The prefix of every key in the store [dlock]' -r
complete -c dlock -n "__fish_dlock_using_subcommand man" -s o -l output -d 'How to print; on-failure: run shows the command\'s output only if the run failed' -r -f -a "human\t''
json\t''
on-failure\t''"
complete -c dlock -n "__fish_dlock_using_subcommand man" -l color -d 'Colours on the terminal' -r -f -a "auto\t''
always\t''
never\t''"
complete -c dlock -n "__fish_dlock_using_subcommand man" -l insecure-argv -d 'Allow a password in the --backend URL'
complete -c dlock -n "__fish_dlock_using_subcommand man" -l json -d 'Print one JSON object (= -o json)'
complete -c dlock -n "__fish_dlock_using_subcommand man" -s q -l quiet -d 'No notices'
complete -c dlock -n "__fish_dlock_using_subcommand man" -s v -l verbose -d 'Print the causes of an error'
complete -c dlock -n "__fish_dlock_using_subcommand man" -s h -l help -d 'Print help; --help: all options'

# Candidates that dlock itself knows: names of the configuration file, and within 300 ms what the store tells.
function __dlock_values
    set -l words (commandline -opc)
    set -e words[1]
    command dlock __complete $argv[1] $words 2>/dev/null
end
function __dlock_after_dashes
    contains -- -- (commandline -opc)
end
function __dlock_command
    set -l words (commandline -opc)
    set -l at (contains -i -- -- $words)
    complete -C (string join -- ' ' (string escape -- $words[(math $at + 1)..-1]) (commandline -ct))
end
complete -c dlock -s b -l backend -x -a '(__dlock_values backends)'
complete -c dlock -s k -l key -x -a '(__dlock_values keys)'
complete -c dlock -l fence -x -a '(__dlock_values fences)'
complete -c dlock -l namespace -x -a '(__dlock_values namespaces)'
for name in acquire renew verify release hold inspect names history break explain forget
    complete -c dlock -n "__fish_seen_subcommand_from $name; and not __dlock_after_dashes" -f -a '(__dlock_values keys)'
end
complete -c dlock -n "__fish_seen_subcommand_from help" -f -a "run acquire renew verify release hold inspect names list history break doctor init gc completions man"
complete -c dlock -n __dlock_after_dashes -f -a '(__dlock_command)'
