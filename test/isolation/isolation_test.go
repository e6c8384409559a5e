package isolation

import (
	"context"
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
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/test/harness"
)

var (
	seedFlag    = flag.Uint64("seed", 0, "seed of the generated requests; 0 draws one")
	inputsFlag  = flag.Uint64("inputs", 500, "how many requests to generate")
	fromFlag    = flag.Uint64("from", 0, "number of the first generated request; with -inputs 1 and the seed it repeats one")
	workersFlag = flag.Int("workers", 16, "how many requests are under way at a time")
)

func TestMain(m *testing.M) {
	flag.Parse()
	// Millions of refused requests are logged by upstream's handlers.
	klog.SetLogger(logr.Discard())
	os.Exit(harness.Main(m))
}

// TestIsolation attacks one cluster in every way, and holds that nothing
// crosses, that nobody learns what exists, and that etcd holds of the victims
// what it held before.
func TestIsolation(t *testing.T) {
	options, etcd := withEtcd(t, harness.Options{
		Shards: 2, DevTokens: true,
		// The front-proxy lets strangers wait, for what exists as for what does not.
		ExtraArgs:   map[string][]string{"front-proxy": {"--index-timeout=1ms"}},
		SecondProxy: []string{"--index-timeout=" + patientTimeout.String()},
	})
	c := harness.Start(t, options)
	w := newWorld(t, c)
	before := w.quiet(t, etcd)
	stop := w.beat(t)
	t.Run("by the table", w.table)
	t.Run("replicas", w.replicas)
	t.Run("homes", w.homes)
	t.Run("by time", func(t *testing.T) {
		if testing.Short() {
			t.Skip("nightly: compares statistics of response times")
		}
		w.testTimes(t)
	})
	t.Run("with objects", w.objects)
	t.Run("generated", func(t *testing.T) { w.generated(t, harness.Seed(*seedFlag), *fromFlag, *inputsFlag) })
	stop()
	require.Empty(t, before.difference(w.stored(t, etcd)), "what the victims had in etcd")
}

// quietFor is for how long nothing of the victims has to change: a controller that marks what is new
// may be late on a busy machine.
const quietFor = 5 * time.Second

// quiet waits until nothing of the victims changes by itself any more, and
// returns what is stored of them.
func (w *world) quiet(t *testing.T, etcd *clientv3.Client) content {
	t.Helper()
	before, since := w.stored(t, etcd), time.Now()
	require.NoError(t, wait.PollUntilContextTimeout(t.Context(), quietFor/20, 2*time.Minute, true, func(context.Context) (bool, error) {
		if now := w.stored(t, etcd); len(before.difference(now)) > 0 {
			before, since = now, time.Now()
		}
		return time.Since(since) >= quietFor, nil
	}), "the victims' objects change all the time")
	return before
}

// beat changes an object of each victim all the time, until stop is called.
func (w *world) beat(t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			for _, victim := range []tenant{w.bravo, w.blind} {
				body := fmt.Sprintf(`{"data":{"key":"%s-pulse","n":"%d"}}`, w.secret, n)
				_, _ = call(ctx, w.admin, http.MethodPatch, victim.name, "/api/v1/namespaces/default/configmaps/"+pulse, body) // a beat may be missed
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

// progressEvery is after how many inputs a long run says how far it is.
const progressEvery = 50_000

// generated attacks with what the generator makes of a seed.
func (w *world) generated(t *testing.T, seed, from, inputs uint64) {
	t.Logf("seed %d", seed)
	w.inside()
	began := time.Now()
	r := &run{world: w, seed: seed, seen: map[string]int{}}
	var next atomic.Uint64
	next.Store(from)
	var wg sync.WaitGroup
	for range *workersFlag {
		wg.Go(func() {
			for {
				number := next.Add(1) - 1
				if number >= from+inputs || r.failed() {
					return
				}
				if number%2000 == 1999 {
					r.tend(t.Context())
				}
				if done := number - from; done > 0 && done%progressEvery == 0 {
					t.Logf("%d of %d inputs after %s", done, inputs, time.Since(began).Round(time.Second))
				}
				r.one(t.Context(), number)
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	for _, text := range r.odd {
		t.Log(text)
	}
	for _, f := range r.findings {
		t.Errorf("%s\nrepeat it with: go test ./test/isolation -run TestIsolation -seed %d -from %d -inputs 1", w.describe(*f.finding), seed, f.number)
	}
	t.Logf("seed %d: %d inputs in %s, %.0f a second: %s; %d calls of webhooks; alpha restored %d times",
		seed, r.sent.Load(), took.Round(time.Millisecond), float64(r.sent.Load())/took.Seconds(), r.summary(), w.hook.calls.Load(), r.restored)
	if inputs >= 1000 && !r.failed() {
		for _, name := range []string{frontProxy, "root"} {
			require.Greater(t, r.seen[name+" 200"], int(inputs)/200, "requests get nowhere")
			require.Greater(t, r.seen[name+" 403"], int(inputs)/50, "nothing is tried")
		}
		require.Greater(t, r.compared.Load(), int64(inputs)/20, "existing and missing are hardly compared")
	}
}

// run is a run of generated inputs.
type run struct {
	*world

	seed     uint64
	sent     atomic.Int64
	compared atomic.Int64

	mu       sync.Mutex
	findings []numbered
	seen     map[string]int
	odd      []string
	tending  sync.Mutex
	restored int
}

type numbered struct {
	*finding

	number uint64
}

// maxOdd is how many answers that say that something failed are shown.
const maxOdd = 12

// maxFindings is after how many findings a run ends.
const maxFindings = 8

func (r *run) failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.findings) >= maxFindings
}

func (r *run) one(ctx context.Context, number uint64) {
	in := r.generate(r.seed, number)
	got, found := r.attack(ctx, in)
	r.sent.Add(1)
	if hasTwin(in) && got.err == nil {
		r.compared.Add(1)
	}
	what := "unsent"
	if got.err == nil {
		what = fmt.Sprintf("%s %d", r.targets[in.target].name, got.code)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen[what]++
	if (got.code == http.StatusInternalServerError || got.code == http.StatusBadGateway) && got.err == nil && len(r.odd) < maxOdd {
		r.odd = append(r.odd, r.describe(finding{what: fmt.Sprintf("input %d crosses nothing, but is odd", number), in: in, got: got}))
	}
	if found != nil {
		r.findings = append(r.findings, numbered{found, number})
	}
}

func (r *run) summary() string {
	text := ""
	for _, what := range slices.Sorted(maps.Keys(r.seen)) {
		text += fmt.Sprintf("%s: %d, ", what, r.seen[what])
	}
	return text + fmt.Sprintf("compared with what does not exist: %d", r.compared.Load())
}

// tend puts alpha right again, whose administrators attack it as well: without
// rights and objects there they would test little.
func (r *run) tend(ctx context.Context) {
	r.tending.Lock()
	defer r.tending.Unlock()
	for i, p := range r.whos {
		if !p.insider {
			continue
		}
		got := r.perform(ctx, input{who: i, target: 1, raw: "GET /clusters/$A$/api/v1/namespaces/vault/configmaps/treasure HTTP/1.1\r\n\r\n"}, false)
		if got.code != http.StatusOK {
			r.restore(ctx)
			return
		}
	}
}

// restore is the work of an administrator of the shard.
func (r *run) restore(ctx context.Context) {
	r.restored++
	do := func(method, path, body string) answer {
		got, _ := call(ctx, r.masters, method, r.alpha.name, path, body) // what fails is tried again
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
