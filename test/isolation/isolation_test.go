package isolation

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/test/harness"
)

var (
	seedFlag    = flag.Uint64("seed", 0, "seed of the generated requests; 0 selects a random one")
	inputsFlag  = flag.Uint64("inputs", 500, "number of generated requests")
	fromFlag    = flag.Uint64("from", 0, "number of the first generated request; with -inputs 1 and the seed it repeats one")
	workersFlag = flag.Int("workers", 16, "number of concurrent requests")
)

func TestMain(m *testing.M) {
	flag.Parse()
	// Upstream's handlers would log millions of rejected requests.
	klog.SetLogger(logr.Discard())
	os.Exit(harness.Main(m))
}

// TestIsolation attacks one cluster in every way. It checks that no data of the victims is
// returned, that responses do not disclose which objects exist, and that the victims' content in
// etcd does not change.
func TestIsolation(t *testing.T) {
	options, etcd := withEtcd(t, harness.Options{
		Shards: 2, DevTokens: true,
		// The front-proxy delays denials for existing and missing logical clusters.
		ExtraArgs:   map[string][]string{"front-proxy": {"--index-timeout=1ms"}},
		SecondProxy: []string{"--index-timeout=" + slowTimeout.String()},
	})
	c := harness.Start(t, options)
	w := newWorld(t, c)
	before := w.waitUntilStable(t, etcd)
	stop := w.keepChanging(t)
	t.Run("table", w.testTable)
	t.Run("replicas", w.testReplicas)
	t.Run("homes", w.testHomes)
	t.Run("response times", func(t *testing.T) {
		if testing.Short() {
			t.Skip("nightly: compares statistics of response times")
		}
		w.testTimes(t)
	})
	t.Run("objects", w.testObjects)
	t.Run("generated", func(t *testing.T) { w.testGenerated(t, harness.Seed(*seedFlag), *fromFlag, *inputsFlag) })
	stop()
	require.Empty(t, before.difference(w.stored(t, etcd)), "the victims' content in etcd has changed")
}

// stablePeriod is how long the victims' objects must be unchanged before the attack, because
// controllers may be slow on a busy machine.
const stablePeriod = 5 * time.Second

// waitUntilStable waits until controllers have stopped changing the victims' objects, and returns
// their content.
func (w *world) waitUntilStable(t *testing.T, etcd *clientv3.Client) content {
	t.Helper()
	before, since := w.stored(t, etcd), time.Now()
	require.NoError(t, wait.PollUntilContextTimeout(t.Context(), stablePeriod/20, 2*time.Minute, true, func(context.Context) (bool, error) {
		if now := w.stored(t, etcd); len(before.difference(now)) > 0 {
			before, since = now, time.Now()
		}
		return time.Since(since) >= stablePeriod, nil
	}), "the victims' objects do not stop changing")
	return before
}

// keepChanging changes an object of each victim repeatedly until stop is called.
func (w *world) keepChanging(t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			for _, victim := range []tenant{w.bravo, w.blind} {
				body := fmt.Sprintf(`{"data":{"key":"%s-pulse","n":"%d"}}`, w.secret, n)
				_, _ = call(ctx, w.admin, http.MethodPatch, victim.name, "/api/v1/namespaces/default/configmaps/"+pulse, body) // a change may fail
			}
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// progressEvery is the number of inputs after which a long run logs its progress.
const progressEvery = 50_000

// testGenerated sends the generated inputs of a seed.
func (w *world) testGenerated(t *testing.T, seed, from, inputs uint64) {
	t.Logf("seed %d", seed)
	w.useHandlers()
	began := time.Now()
	r := &run{world: w, seed: seed, seen: map[string]int{}}
	workqueue.ParallelizeUntil(t.Context(), *workersFlag, int(inputs), func(done int) { //nolint:gosec // a number of requests
		if r.failed() {
			return
		}
		number := from + uint64(done) //nolint:gosec // not negative
		if number%2000 == 1999 {
			r.repairAlpha(t.Context())
		}
		if done > 0 && done%progressEvery == 0 {
			t.Logf("%d of %d inputs after %s", done, inputs, time.Since(began).Round(time.Second))
		}
		r.attackOnce(t.Context(), number)
	})
	took := time.Since(began)
	for _, text := range r.serverErrors {
		t.Log(text)
	}
	for _, f := range r.findings {
		t.Errorf("%s\nReproduce with: go test ./test/isolation -run TestIsolation -seed %d -from %d -inputs 1", w.describe(*f.finding), seed, f.number)
	}
	t.Logf("seed %d: %d inputs in %s, %.0f per second: %s; %d calls of webhooks; alpha restored %d times",
		seed, r.sent.Load(), took.Round(time.Millisecond), float64(r.sent.Load())/took.Seconds(), r.summary(), w.hook.calls.Load(), r.restored)
	if inputs >= 1000 && !r.failed() {
		for _, name := range []string{frontProxy, "root"} {
			require.Greater(t, r.seen[name+" 200"], int(inputs)/200, "too few requests succeed")
			require.Greater(t, r.seen[name+" 403"], int(inputs)/50, "too few requests are forbidden")
		}
		require.Greater(t, r.compared.Load(), int64(inputs)/20, "too few responses for existing and missing objects are compared")
	}
}

// run is a run of generated inputs.
type run struct {
	*world

	seed     uint64
	sent     atomic.Int64
	compared atomic.Int64

	mu           sync.Mutex
	findings     []numbered
	seen         map[string]int
	serverErrors []string
	repairing    sync.Mutex
	restored     int
}

type numbered struct {
	*finding

	number uint64
}

// maxServerErrors is the maximum number of logged server errors, and maxFindings the number of
// findings after which a run ends.
const maxServerErrors, maxFindings = 12, 8

func (r *run) failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.findings) >= maxFindings
}

func (r *run) attackOnce(ctx context.Context, number uint64) {
	in := r.generate(r.seed, number)
	got, found := r.attack(ctx, in)
	r.sent.Add(1)
	if hasTwin(in) && got.err == nil {
		r.compared.Add(1)
	}
	result := "unsent"
	if got.err == nil {
		result = fmt.Sprintf("%s %d", r.targets[in.target].name, got.code)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen[result]++
	if (got.code == http.StatusInternalServerError || got.code == http.StatusBadGateway) && got.err == nil && len(r.serverErrors) < maxServerErrors {
		r.serverErrors = append(r.serverErrors, r.describe(finding{message: fmt.Sprintf("server error for input %d", number), in: in, got: got}))
	}
	if found != nil {
		r.findings = append(r.findings, numbered{found, number})
	}
}

func (r *run) summary() string {
	text := ""
	for _, result := range slices.Sorted(maps.Keys(r.seen)) {
		text += fmt.Sprintf("%s: %d, ", result, r.seen[result])
	}
	return text + fmt.Sprintf("compared with missing objects: %d", r.compared.Load())
}

// repairAlpha restores alpha if its administrators lost their rights. They attack alpha as well,
// and most attacks require rights and objects there.
func (r *run) repairAlpha(ctx context.Context) {
	r.repairing.Lock()
	defer r.repairing.Unlock()
	for i, p := range r.attackers {
		if !p.insider {
			continue
		}
		got := r.perform(ctx, input{attacker: i, target: 1, raw: "GET /clusters/$A$/api/v1/namespaces/vault/configmaps/treasure HTTP/1.1\r\n\r\n"}, false)
		if got.code != http.StatusOK {
			r.restore(ctx)
			return
		}
	}
}

// restore restores alpha as an administrator of the shard.
func (r *run) restore(ctx context.Context) {
	r.restored++
	do := func(method, path, body string) response {
		got, _ := call(ctx, r.masters, method, r.alpha.name, path, body) // the next call retries
		return got
	}
	for _, plural := range []string{"validatingwebhookconfigurations", "mutatingwebhookconfigurations", "validatingadmissionpolicies", "validatingadmissionpolicybindings"} {
		do(http.MethodDelete, "/apis/admissionregistration.k8s.io/v1/"+plural, "")
	}
	do(http.MethodPatch, "/apis/core.kcp.io/v1alpha1/logicalclusters/cluster", `{"metadata":{"annotations":{"authorization.kcp.io/required-groups":null,"core.kcp.io/inactive":null}}}`)
	for name, subject := range map[string]string{
		"mallory": `{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"mallory"}`,
		"user-1":  `{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"user-1"}`,
		"robot":   `{"kind":"ServiceAccount","namespace":"default","name":"robot"}`,
	} {
		const bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
		do(http.MethodDelete, bindings+"/"+name, "")
		do(http.MethodPost, bindings, `{"metadata":{"name":"`+name+`"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[`+subject+`]}`)
	}
	do(http.MethodDelete, "/apis/rbac.authorization.k8s.io/v1/clusterroles/cluster-admin", "")
	for _, m := range common {
		do(http.MethodPost, m.path, manifestBody(m, "own"))
	}
	var fresh struct{ Status struct{ Token string } }
	if decode(do(http.MethodPost, accounts+"/robot/token", `{"spec":{}}`), &fresh) && fresh.Status.Token != "" {
		r.setToken("service account", fresh.Status.Token)
	}
}

// decode decodes a JSON response, and reports whether it succeeded.
func decode(a response, into any) bool { return json.Unmarshal(a.body, into) == nil }

// FuzzIsolation lets the fuzzer mutate generated requests:
//
//	go test ./test/isolation -run xxx -fuzz FuzzIsolation
//
// Without -fuzz it is skipped, because TestIsolation sends the same requests.
func FuzzIsolation(f *testing.F) {
	fuzzing := false
	for _, name := range []string{"test.fuzz", "test.fuzzworker"} {
		if set := flag.Lookup(name); set != nil && set.Value.String() != "" && set.Value.String() != "false" {
			fuzzing = true
		}
	}
	if !fuzzing {
		f.Skip("without -fuzz, TestIsolation sends the same requests")
	}
	c := harness.Start(f, harness.Options{Shards: 2, DevTokens: true, ExtraArgs: map[string][]string{"front-proxy": {"--index-timeout=1ms"}}})
	w := newWorld(f, c)
	w.useHandlers()
	for number := range uint64(500) {
		in := w.generate(1, number)
		f.Add(uint8(in.attacker), uint8(in.target), in.raw) //nolint:gosec // both are less than 256
	}
	f.Fuzz(func(t *testing.T, attacker, target uint8, raw string) {
		in := input{attacker: int(attacker) % len(w.attackers), target: int(target) % len(w.targets), raw: raw}
		if !w.attackers[in.attacker].attacks(w.targets[in.target].name) {
			return
		}
		if _, found := w.attack(t.Context(), in); found != nil {
			t.Fatal(w.describe(*found))
		}
	})
}
