#!/usr/bin/perl
# A worker in Perl, with only its core modules: JSON lines on a Unix socket.
#
#     perl worker.pl QUEUE TEXT       stores a job and prints its id
#     perl worker.pl QUEUE            processes the queue's jobs until SIGTERM
use strict;
use warnings;
use IO::Socket::UNIX;
use JSON::PP;
use MIME::Base64;
use Time::HiRes 'sleep';

# Processes a job. If it dies, the job is tried again later.
sub work {
    my ($payload, $job) = @_;
    die "there is no name to greet\n" if !defined $payload || ref $payload || $payload eq '';
    print "hello, $payload (attempt $job->{attempt})\n";
}

# Returns the paths of the sidecar's socket, in the order of PROTOCOL.md, section 2.
sub sockets {
    return $ENV{QSIDECAR_SOCKET} if $ENV{QSIDECAR_SOCKET};
    my $state = $ENV{XDG_STATE_HOME} || ($ENV{HOME} && "$ENV{HOME}/.local/state");
    my $own = $> != 0 && $state && -d "$state/qsidecar";
    my $runtime = $ENV{XDG_RUNTIME_DIR};    # root skips that of another user: it can have a false socket
    undef $runtime if $> == 0 && $runtime && grep { -e $_ && (stat $_)[4] != 0 } $runtime, "$runtime/qsidecar";
    return map { "$_/qsidecar/qsidecar.sock" } grep { $_ } $runtime, $own && $state, '/run';
}

my $json = JSON::PP->new->utf8;
my $values = JSON::PP->new->allow_nonref;    # of payloads: JSON in a string of characters
my $socket;    # close-on-exec, like all files of Perl

# Sends a line and returns its reply, or undef if none arrives.
sub try {
    my ($line) = @_;
    $socket ||= IO::Socket::UNIX->new(Peer => $_) for sockets();
    return unless $socket;
    my $answer = print({$socket} $line) && $socket->flush ? <$socket> : undef;
    return $json->decode($answer) if defined $answer && $answer =~ /\n\z/;    # a partial line is not a reply
    undef $socket;
    return;
}

# Sends a request and returns its reply. If no reply arrives, or the sidecar can't carry it out
# now, it repeats the request. That is safe for claim, ack and nack, and for an enqueue with a key.
sub ask {
    my $line = $json->encode({@_}) . "\n";
    for (my $wait = 0.05; ; $wait = $wait < 0.5 ? 2 * $wait : 1) {
        my $answer = try($line);
        return $answer if $answer && $answer->{ok};
        my $error = $answer ? $answer->{error} : {};
        die "$error->{code}: $error->{message}\n"
            if $answer && $error->{code} !~ /^(?:unavailable|unknown_outcome|busy|draining)$/;
        sleep($error->{retry_ms} ? $error->{retry_ms} / 1000 : $wait * (0.5 + rand(0.5)));
    }
}

# The bytes of a job's payload: in the field payload_b64 if they are not UTF-8.
sub raw {
    my ($job) = @_;
    return decode_base64($job->{payload_b64}) if defined $job->{payload_b64};
    my $bytes = $job->{payload};
    utf8::encode($bytes);
    return $bytes;
}

# A job's payload as a JSON value, as all clients store it; undef if there are no bytes.
sub payload {
    my ($job) = @_;
    my $text = $job->{payload};
    return if defined $text && $text eq '';
    my $value = defined $text && eval { [$values->decode($text)] };
    die "the payload is not JSON; raw(\$job) returns its bytes\n" unless $value;
    return $value->[0];
}

my ($queue, $text) = @ARGV;
die "usage: perl worker.pl QUEUE [TEXT]\n" unless defined $queue;
$| = 1;
binmode STDOUT, ':encoding(UTF-8)';
$SIG{PIPE} = 'IGNORE';    # a write to a broken connection then returns an error
if (defined $text) {
    utf8::decode($text) or die "TEXT is not UTF-8\n";
    my $key = join '-', time, $$, int rand 2**31;    # the key makes a repeated enqueue safe
    my $stored = ask(op => 'enqueue', queue => $queue, key => $key, payload => $values->encode($text));
    print "$stored->{job}{id}\n";
    exit;
}

my $stop = 0;
$SIG{TERM} = $SIG{INT} = sub { $stop = 1 };
until ($stop) {           # a short wait, because a signal does not end it
    for my $job (@{ ask(op => 'claim', queue => $queue, wait_ms => 1000)->{jobs} }) {
        my %settle = eval { work(payload($job), $job); 1 } ? (op => 'ack') : (op => 'nack', error => "$@");
        eval { ask(%settle, lease => $job->{lease}); 1 }
            or warn "job $job->{id}: $@";    # lease_lost: settled before its reply was lost, or another worker has the job
    }
}
