package ringprocesses

import (
	"bufio"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/harness"
)

var (
	durationFlag = flag.Duration("duration", 20*time.Second, "duration of fault injection")
	defaultsFlag = flag.Bool("defaults", false, "use the default durations of a ring instead of short ones")
	slackFlag    = flag.Duration("slack", 10*time.Second, "tolerance for the time without a worker on a busy machine")
	seedFlag     = flag.Uint64("seed", 0, "seed of the random choices; random by default")
)

func TestMain(m *testing.M) {
	if os.Getenv(nameEnv) != "" {
		if err := runMember(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(harness.Main(m))
}

const (
	minMembers = 3
	maxMembers = 5
)

// process is a member and its link.
type process struct {
	*exec.Cmd
	*link

	number int
	ended  chan struct{}
	stderr *strings.Builder
}

// ringTest is a ring of processes.
type ringTest struct {
	*testing.T
	spans

	rand       *rand.Rand
	server     string
	kubeconfig string
	started    int
	running    []*process
}

func (d *ringTest) start() *process {
	d.Helper()
	d.started++
	p := &process{link: newLink(d.T, d.server), number: d.started, ended: make(chan struct{}), stderr: &strings.Builder{}}
	p.Cmd = exec.CommandContext(d.Context(), os.Args[0])
	p.Env = append(os.Environ(), fmt.Sprintf("%s=p%d", nameEnv, p.number), kubeconfigEnv+"="+d.kubeconfig, linkEnv+"="+p.Addr().String())
	if *defaultsFlag {
		p.Env = append(p.Env, defaultsEnv+"=1")
	}
	p.Stderr = p.stderr
	out, err := p.StdoutPipe()
	require.NoError(d, err)
	require.NoError(d, p.Start())
	go func() {
		defer close(p.ended)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			one, n := span{process: p.number}, 0
			if _, err := fmt.Sscan(lines.Text(), &n, &one.start, &one.lastChecked); err == nil {
				d.add(n, one)
			}
		}
		_ = p.Wait()
	}()
	d.Cleanup(func() {
		_ = p.Process.Kill()
		<-p.ended
	})
	d.running = append(d.running, p)
	return p
}

func (d *ringTest) signalAndForget(p *process, signal syscall.Signal) {
	d.running = slices.DeleteFunc(d.running, func(other *process) bool { return other == p })
	_ = p.Process.Signal(signal)
}

// sleep waits for a duration that is a part of the test, e.g. of a freeze or of work.
func sleep(long time.Duration) {
	time.Sleep(long) //nolint:forbidigo // see above
}

// faults are applied to a process for a duration.
var faults = map[string]func(d *ringTest, p *process, long time.Duration){
	"killed":     func(d *ringTest, p *process, _ time.Duration) { d.signalAndForget(p, syscall.SIGKILL) },
	"terminated": func(d *ringTest, p *process, _ time.Duration) { d.signalAndForget(p, syscall.SIGTERM) },
	"cut off": func(_ *ringTest, p *process, long time.Duration) {
		p.set(true, false)
		sleep(long)
		p.set(false, false)
	},
	"stalled": func(_ *ringTest, p *process, long time.Duration) {
		p.set(false, true)
		sleep(long)
		p.set(false, false)
	},
	"reset":     func(_ *ringTest, p *process, _ time.Duration) { p.set(true, false); p.set(false, false) },
	"two added": func(d *ringTest, _ *process, _ time.Duration) { d.start(); d.start() },
	"frozen": func(d *ringTest, p *process, long time.Duration) {
		from := time.Now()
		_ = p.Process.Signal(syscall.SIGSTOP)
		sleep(long)
		to := time.Now()
		_ = p.Process.Signal(syscall.SIGCONT)
		d.addFrozen(p.number, from, to)
	},
}

// repair restores the number of members, and waits until each hash was processed.
func (d *ringTest) repair(what string, lease time.Duration) {
	d.Helper()
	for _, p := range slices.Clone(d.running) {
		select {
		case <-p.ended:
			d.Errorf("after %q, process %d ended unexpectedly: %s", what, p.number, p.stderr)
			d.running = slices.DeleteFunc(d.running, func(other *process) bool { return other == p })
		default:
		}
	}
	for len(d.running) < minMembers {
		d.start()
	}
	for len(d.running) > maxMembers {
		d.signalAndForget(d.running[0], syscall.SIGTERM)
	}
	since := time.Now()
	require.Eventually(d, func() bool { return d.allProcessedSince(since) }, 4*lease+time.Minute, 50*time.Millisecond, "not all hashes are processed after %q", what)
}

// TestRing injects faults, and checks that no hash has two workers, and that no hash has no worker
// for longer than after a crash.
func TestRing(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: kills and freezes processes")
	}
	seed := harness.Seed(*seedFlag)
	t.Logf("-seed %d", seed)
	cluster := harness.Start(t, harness.Options{})
	shard, err := url.Parse(cluster.Shard(0).Host)
	require.NoError(t, err)
	d := &ringTest{T: t, rand: rand.New(rand.NewPCG(seed, 1)), server: shard.Host, kubeconfig: cluster.ShardKubeconfig(0)}
	lease := config(*defaultsFlag).LeaseDuration
	d.repair("the start", lease)
	names := []string{"killed", "killed", "frozen", "frozen", "cut off", "stalled", "reset", "terminated", "two added"}
	begun := time.Now()
	longestIdle, count := map[string]time.Duration{}, map[string]int{}
	for n := 0; n == 0 || time.Since(begun) < *durationFlag; n++ {
		since, what, allowed := time.Now(), []string{}, time.Duration(0)
		for range 1 + d.rand.IntN(4)/3 {
			name, p := names[d.rand.IntN(len(names))], d.running[d.rand.IntN(len(d.running))]
			what, allowed = append(what, name), allowed+lease+time.Second
			faults[name](d, p, time.Duration(d.rand.Int64N(int64(2*lease))))
		}
		name := strings.Join(what, ", ")
		d.repair(name, lease)
		overlaps, idle := d.check(since)
		require.Empty(t, overlaps, "after %q", name)
		require.LessOrEqual(t, idle, allowed+*slackFlag, "after %q", name)
		longestIdle[name], count[name] = max(longestIdle[name], idle), count[name]+1
	}
	for _, name := range slices.Sorted(maps.Keys(longestIdle)) {
		t.Logf("%3d × %-20s at most %s without a worker", count[name], name, longestIdle[name].Round(time.Millisecond))
	}
}
