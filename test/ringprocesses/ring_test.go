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
	durationFlag = flag.Duration("duration", 20*time.Second, "how long to break members")
	defaultsFlag = flag.Bool("defaults", false, "use the default times of a ring, instead of short ones")
	slackFlag    = flag.Duration("slack", 10*time.Second, "how much longer than the numbers a hash may have nobody: the machine is busy")
	seedFlag     = flag.Uint64("seed", 0, "of the random choices; drawn by default")
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
	members = 3
	most    = 5
)

// process is a member.
type process struct {
	*exec.Cmd
	*wire

	number int
	ended  chan struct{}
	stderr *strings.Builder
}

// drill is a ring of processes, and what is done to them.
type drill struct {
	*testing.T
	spans

	rand       *rand.Rand
	server     string
	kubeconfig string
	started    int
	live       []*process
}

func (d *drill) start() *process {
	d.Helper()
	d.started++
	p := &process{wire: newWire(d.T, d.server), number: d.started, ended: make(chan struct{}), stderr: &strings.Builder{}}
	p.Cmd = exec.CommandContext(d.Context(), os.Args[0])
	p.Env = append(os.Environ(), fmt.Sprintf("%s=p%d", nameEnv, p.number), kubeconfigEnv+"="+d.kubeconfig, wireEnv+"="+p.Addr().String())
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
			if _, err := fmt.Sscan(lines.Text(), &n, &one.began, &one.looked); err == nil {
				d.add(n, one)
			}
		}
		_ = p.Wait()
	}()
	d.Cleanup(func() {
		_ = p.Process.Kill()
		<-p.ended
	})
	d.live = append(d.live, p)
	return p
}

func (d *drill) leave(p *process, signal syscall.Signal) {
	d.live = slices.DeleteFunc(d.live, func(other *process) bool { return other == p })
	_ = p.Process.Signal(signal)
}

// hold lets a time pass that is a part of what is tested, as how long a process is frozen, works, or
// rests: there is no state to wait for.
func hold(long time.Duration) {
	time.Sleep(long) //nolint:forbidigo // see above
}

// troubles are what is done to a process, for a while.
var troubles = map[string]func(d *drill, p *process, long time.Duration){
	"killed": func(d *drill, p *process, _ time.Duration) { d.leave(p, syscall.SIGKILL) },
	"leaves": func(d *drill, p *process, _ time.Duration) { d.leave(p, syscall.SIGTERM) },
	"cut off": func(_ *drill, p *process, long time.Duration) {
		p.set(true, false)
		hold(long)
		p.set(false, false)
	},
	"held up": func(_ *drill, p *process, long time.Duration) {
		p.set(false, true)
		hold(long)
		p.set(false, false)
	},
	"reset":    func(_ *drill, p *process, _ time.Duration) { p.set(true, false); p.set(false, false) },
	"two join": func(d *drill, _ *process, _ time.Duration) { d.start(); d.start() },
	"frozen": func(d *drill, p *process, long time.Duration) {
		from := time.Now()
		_ = p.Process.Signal(syscall.SIGSTOP)
		hold(long)
		to := time.Now()
		_ = p.Process.Signal(syscall.SIGCONT)
		d.froze(p.number, from, to)
	},
}

// mend has as many members as there are to be, and waits until each hash is worked on.
func (d *drill) mend(what string, lease time.Duration) {
	d.Helper()
	for _, p := range slices.Clone(d.live) {
		select {
		case <-p.ended:
			d.Errorf("after %q process %d ended by itself: %s", what, p.number, p.stderr)
			d.live = slices.DeleteFunc(d.live, func(other *process) bool { return other == p })
		default:
		}
	}
	for len(d.live) < members {
		d.start()
	}
	for len(d.live) > most {
		d.leave(d.live[0], syscall.SIGTERM)
	}
	since := time.Now()
	require.Eventually(d, func() bool { return d.coveredSince(since) }, 4*lease+time.Minute, 50*time.Millisecond, "all hashes are worked on after %q", what)
}

// TestRing breaks members, and holds that no hash has two workers, and none nobody for longer
// than a crash takes.
func TestRing(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: kills and freezes processes")
	}
	seed := harness.Seed(*seedFlag)
	t.Logf("-seed %d", seed)
	cluster := harness.Start(t, harness.Options{})
	shard, err := url.Parse(cluster.Shard(0).Host)
	require.NoError(t, err)
	d := &drill{T: t, rand: rand.New(rand.NewPCG(seed, 1)), server: shard.Host, kubeconfig: cluster.ShardKubeconfig(0)}
	lease := config(*defaultsFlag).LeaseDuration
	d.mend("the start", lease)
	names := []string{"killed", "killed", "frozen", "frozen", "cut off", "held up", "reset", "leaves", "two join"}
	begun := time.Now()
	worst, count := map[string]time.Duration{}, map[string]int{}
	for n := 0; n == 0 || time.Since(begun) < *durationFlag; n++ {
		since, what, allowed := time.Now(), []string{}, time.Duration(0)
		for range 1 + d.rand.IntN(4)/3 {
			name, p := names[d.rand.IntN(len(names))], d.live[d.rand.IntN(len(d.live))]
			what, allowed = append(what, name), allowed+lease+time.Second
			troubles[name](d, p, time.Duration(d.rand.Int64N(int64(2*lease))))
		}
		name := strings.Join(what, ", ")
		d.mend(name, lease)
		overlaps, idle := d.check(since)
		require.Empty(t, overlaps, "after %q", name)
		require.LessOrEqual(t, idle, allowed+*slackFlag, "after %q", name)
		worst[name], count[name] = max(worst[name], idle), count[name]+1
	}
	for _, name := range slices.Sorted(maps.Keys(worst)) {
		t.Logf("%3d × %-20s a hash had nobody for %s at most", count[name], name, worst[name].Round(time.Millisecond))
	}
}
