#!/usr/bin/perl
# A worker in Perl. It needs only core modules, and uses JSON lines on a Unix socket.
#
#     perl worker.pl QUEUE PAYLOAD    stores a job and prints its id
#     perl worker.pl QUEUE            works the queue's jobs until SIGTERM
use strict;
use warnings;
use IO::Socket::UNIX;
use JSON::PP;
use MIME::Base64;
use Time::HiRes 'sleep';

# The work on a job. If it fails, it calls die with the error, and the job comes again later.
sub work {
    my ($payload, $job) = @_;
    die "there is nobody to greet\n" if $payload eq '';
    print "hello, $payload (attempt $job->{attempt})\n";
}

my $path = $ENV{QSIDECAR_SOCKET} || '/run/qsidecar/qsidecar.sock';
my $json = JSON::PP->new->utf8;
my $socket;    # close-on-exec, like all files of Perl

# Sends a line and returns the reply, or undef if no reply came.
sub try {
    my ($line) = @_;
    $socket ||= IO::Socket::UNIX->new(Peer => $path) or return;
    my $answer = print({$socket} $line) && $socket->flush ? <$socket> : undef;
    return $json->decode($answer) if defined $answer && $answer =~ /\n\z/;    # half a reply doesn't count
    undef $socket;
    return;
}

# Sends a request and returns the reply. If no reply comes, or the sidecar is temporarily
# unable, it sends the request again. This is safe for claim, ack and nack, and for an
# enqueue with a key.
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

# The field of a payload. If the bytes aren't UTF-8, it is base64.
sub payload {
    my ($bytes) = @_;
    my $text = $bytes;
    return utf8::decode($text) ? (payload => $text) : (payload_b64 => encode_base64($bytes, ''));
}

# The bytes of a job's payload.
sub bytes_of {
    my ($job) = @_;
    return decode_base64($job->{payload_b64}) if defined $job->{payload_b64};
    my $bytes = defined $job->{payload} ? $job->{payload} : '';
    utf8::encode($bytes);
    return $bytes;
}

my ($queue, $bytes) = @ARGV;
die "usage: perl worker.pl QUEUE [PAYLOAD]\n" unless defined $queue;
$| = 1;
$SIG{PIPE} = 'IGNORE';    # so that a write to a broken connection fails at once
if (defined $bytes) {
    my $key = join '-', time, $$, int rand 2**31;    # if it is sent twice, it is stored once
    print ask(op => 'enqueue', queue => $queue, key => $key, payload($bytes))->{job}{id}, "\n";
    exit;
}

my $stop = 0;
$SIG{TERM} = $SIG{INT} = sub { $stop = 1 };
until ($stop) {           # a short wait, because a signal doesn't end it
    for my $job (@{ ask(op => 'claim', queue => $queue, wait_ms => 1000)->{jobs} }) {
        my %settle = eval { work(bytes_of($job), $job); 1 } ? (op => 'ack') : (op => 'nack', error => "$@");
        eval { ask(%settle, lease => $job->{lease}); 1 }
            or warn "job $job->{id}: $@";    # lease_lost: the lost reply had settled it, or another worker has it
    }
}
