<?php
// A worker in PHP, with only PHP's own functions: JSON lines on a Unix socket.
//
//     php worker.php QUEUE TEXT       stores a job and prints its id
//     php worker.php QUEUE            processes the queue's jobs until SIGTERM
declare(strict_types=1);

/** What becomes of a job: say what failed by an exception, and it comes again later. */
function work(mixed $payload, array $job): void
{
    if (!is_string($payload) || $payload === '') {
        throw new RuntimeException('there is no name to greet');
    }
    echo "hello, $payload (attempt {$job['attempt']})\n";
}

/** One connection to the host's sidecar, which comes back when it breaks. */
final class Sidecar
{
    /** @var resource|null */
    private $socket = null;
    private bool $silent = false; // a lost connection is reported once

    /** @param string[] $paths */
    public function __construct(private readonly array $paths) {}

    /**
     * Sends a request and returns its answer. Where none comes, or the sidecar cannot just
     * now, it sends the request again: that is safe for claim, ack and nack, and for an
     * enqueue with a key.
     */
    public function ask(array $request): array
    {
        $line = json_encode($request, JSON_THROW_ON_ERROR | JSON_UNESCAPED_UNICODE) . "\n";
        for ($tries = 0; ; $tries++) {
            $wait = random_int(25, 50) * min(2 ** $tries, 20); // milliseconds
            $answer = $this->try($line);
            if ($answer !== null && $answer['ok']) {
                return $answer;
            }
            $error = $answer['error'] ?? [];
            if ($answer !== null && !in_array($error['code'], ['unavailable', 'unknown_outcome', 'busy', 'draining'], true)) {
                throw new RuntimeException("{$error['code']}: {$error['message']}");
            }
            usleep(1000 * ($error['retry_ms'] ?? $wait));
        }
    }

    private function try(string $line): ?array
    {
        foreach ($this->paths as $path) {
            $this->socket ??= @stream_socket_client("unix://$path") ?: null;
        }
        if ($this->socket === null) {
            $this->silent || fwrite(STDERR, 'no sidecar answers on ' . implode(' or ', $this->paths) . ": start one, or name its socket in QSIDECAR_SOCKET; trying again\n");
            $this->silent = true;
            return null;
        }
        $this->silent = false;
        stream_set_timeout($this->socket, 300); // much longer than any wait of this program
        $sent = @fwrite($this->socket, $line) === strlen($line);
        $answer = $sent ? fgets($this->socket) : false;
        if ($answer === false || !str_ends_with($answer, "\n")) { // a partial line is not a reply
            fclose($this->socket);
            $this->socket = null;
            return null;
        }
        return json_decode($answer, true, 64, JSON_THROW_ON_ERROR | JSON_BIGINT_AS_STRING);
    }
}

/** The bytes of a job's payload: in the field payload_b64 if they are not UTF-8. */
function raw(array $job): string
{
    return $job['payload'] ?? base64_decode($job['payload_b64']);
}

/** A job's payload as a JSON value, as all clients store it; null if there are no bytes. */
function payload(array $job): mixed
{
    try {
        return raw($job) === '' ? null : json_decode(raw($job), true, 512, JSON_THROW_ON_ERROR);
    } catch (JsonException $e) {
        throw new RuntimeException("the payload is not JSON ({$e->getMessage()}); raw(\$job) returns its bytes");
    }
}

/** The paths of the sidecar's socket, in the order of PROTOCOL.md, section 2. */
function sockets(): array
{
    if ($named = getenv('QSIDECAR_SOCKET')) {
        if (preg_match('~^(unix:|[a-z][a-z0-9+.-]*://|[^/]+:[0-9]+$)~i', $named)) {
            fwrite(STDERR, "QSIDECAR_SOCKET: $named is not a path, such as /run/qsidecar/qsidecar.sock\n");
            exit(2);
        }
        return [$named];
    }
    $state = getenv('XDG_STATE_HOME') ?: (getenv('HOME') ? getenv('HOME') . '/.local/state' : '');
    $own = posix_geteuid() !== 0 && $state && is_dir("$state/qsidecar");
    $runtime = getenv('XDG_RUNTIME_DIR'); // root skips that of another user: it can have a false socket
    foreach (posix_geteuid() === 0 && $runtime ? [$runtime, "$runtime/qsidecar"] : [] as $dir) {
        $runtime = (@fileowner($dir) ?: 0) === 0 ? $runtime : '';
    }
    $dirs = array_filter([$runtime, $own ? $state : '', '/run']);
    return array_map(fn($dir) => "$dir/qsidecar/qsidecar.sock", array_values($dirs));
}

[$queue, $text] = [$argv[1] ?? exit("usage: php worker.php QUEUE [TEXT]\n"), $argv[2] ?? null];
$sidecar = new Sidecar(sockets());
if ($text !== null) {
    $key = bin2hex(random_bytes(16)); // the key makes a repeated enqueue safe
    $payload = json_encode($text, JSON_THROW_ON_ERROR | JSON_UNESCAPED_UNICODE);
    echo $sidecar->ask(['op' => 'enqueue', 'queue' => $queue, 'key' => $key, 'payload' => $payload])['job']['id'], "\n";
    exit;
}

$stop = false;
pcntl_async_signals(true);
foreach ([SIGTERM, SIGINT] as $signal) {
    pcntl_signal($signal, function () use (&$stop) { $stop = true; });
}
while (!$stop) { // a short wait, because a signal does not end it
    foreach ($sidecar->ask(['op' => 'claim', 'queue' => $queue, 'wait_ms' => 1000])['jobs'] as $job) {
        try {
            work(payload($job), $job);
            $settle = ['op' => 'ack'];
        } catch (Exception $e) {
            $settle = ['op' => 'nack', 'error' => $e->getMessage()];
        }
        try {
            $sidecar->ask($settle + ['lease' => $job['lease']]);
        } catch (RuntimeException $e) { // lease_lost: settled before its reply was lost, or another worker has the job
            fwrite(STDERR, "job {$job['id']}: {$e->getMessage()}\n");
        }
    }
}
