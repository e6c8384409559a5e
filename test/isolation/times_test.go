package isolation

import (
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/util/workqueue"
)

var pairsFlag = flag.Int("pairs", 96, "number of response times for existing and for missing objects to compare for each form of request")

const (
	// slowProxy is a front-proxy with a realistic minimum duration of denials. The timeout of
	// the other front-proxy is shorter than the responses of shards.
	slowProxy   = "front-proxy-2"
	slowTimeout = 100 * time.Millisecond

	// Times differ if both limits are exceeded: by the Mann-Whitney test, one of 10⁹ samples with
	// equal times exceeds the first, and the second is more than the scheduler causes.
	maxDeviation  = 6.0
	maxDifference = time.Millisecond
)

// timed is a form of request for existing and for missing objects.
type timed struct {
	name, method  string
	paths, bodies [2]string
	took          [2][]time.Duration
}

// lists returns the paths of lists in two logical clusters.
func lists(of ...string) [2]string {
	return [2]string{"/clusters/" + of[existing] + secretList, "/clusters/" + of[missing] + secretList}
}

// Objects that refer to an export: the collection, and the object with a verb for the path.
var (
	apiBinding    = [2]string{boundAPI + "apibindings", `{"apiVersion":"apis.kcp.io/v1alpha2","kind":"APIBinding","metadata":{"name":"timed"},"spec":{"reference":{"export":{"path":%q,"name":"gems"}}}}`}
	endpointSlice = [2]string{"/apis/apis.kcp.io/v1alpha1/apiexportendpointslices", `{"apiVersion":"apis.kcp.io/v1alpha1","kind":"APIExportEndpointSlice","metadata":{"name":"timed"},"spec":{"export":{"path":%q,"name":"gems"}}}`}
	workspaceType = [2]string{tenancyGroup + "workspacetypes", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType","metadata":{"name":"timed"},"spec":{"defaultAPIBindings":[{"path":%q,"export":"gems"}]}}`}
)

// referring returns requests that create objects in alpha with references to exports of two logical
// clusters.
func (w *world) referring(name string, object [2]string, of ...string) *timed {
	in := "/clusters/" + w.alpha.name + object[0] + "?dryRun=All"
	return &timed{name: name, method: http.MethodPost, paths: [2]string{in, in}, bodies: [2]string{fmt.Sprintf(object[1], of[existing]), fmt.Sprintf(object[1], of[missing])}}
}

const (
	existing = iota
	missing
)

// testTimes checks that response times do not disclose which objects exist.
func (w *world) testTimes(t *testing.T) {
	for _, found := range w.times(t) {
		t.Error(found)
	}
}

// times returns the forms that have different response times in two consecutive measurements.
func (w *world) times(t *testing.T) []string {
	t.Helper()
	const object = `{"metadata":{"name":"a"}}`
	virtualWorkspace := func(of, export string) string {
		return "/services/apiexport/" + of + "/" + export + "/clusters/" + w.alpha.name + secretList
	}
	forms := []*timed{
		{name: "a list by name", method: http.MethodGet, paths: lists(w.bravo.name, w.absent.name)},
		{name: "a list by path, on the other shard", method: http.MethodGet, paths: lists(w.blind.path, w.absent.path)},
		{name: "a write", method: http.MethodPost, bodies: [2]string{object, object}, paths: lists(w.bravo.path, w.absent.path)},
		{name: "a virtual workspace", method: http.MethodGet, paths: [2]string{virtualWorkspace(w.bravo.path, "gems"), virtualWorkspace(w.absent.path, "gems")}},
		{name: "a virtual workspace of an existing logical cluster", method: http.MethodGet, paths: [2]string{virtualWorkspace(w.bravo.path, "gems"), virtualWorkspace(w.bravo.path, "none")}},
		w.referring("a binding", apiBinding, w.bravo.path, w.absent.path),
		w.referring("a binding to the other shard", apiBinding, w.blind.path, w.absent.path),
		w.referring("an endpoint slice", endpointSlice, w.bravo.path, w.absent.path),
		w.referring("an endpoint slice of the other shard", endpointSlice, w.blind.path, w.absent.path),
		w.referring("a default binding", workspaceType, w.bravo.path, w.absent.path),
		w.referring("a default binding to the other shard", workspaceType, w.blind.path, w.absent.path),
	}
	var found []string
	for try := 0; try < 2 && len(forms) > 0; try++ {
		w.measure(t, forms)
		found = nil
		forms = slices.DeleteFunc(forms, func(f *timed) bool {
			deviation, difference := compare(f.took)
			t.Logf("%s: median difference for existing objects %s, %.1f standard deviations by rank", f.name, difference, deviation)
			if math.Abs(deviation) < maxDeviation || difference.Abs() < maxDifference {
				return true
			}
			found = append(found, fmt.Sprintf("%s discloses existence by its response time: median difference %s, %.1f standard deviations", f.name, difference, deviation))
			return false
		})
	}
	return found
}

// measure sends the requests of all forms in random order, so that other load affects existing and
// missing objects equally.
func (w *world) measure(t *testing.T, forms []*timed) {
	t.Helper()
	type request struct {
		form  *timed
		about int
	}
	var requests []request
	for _, form := range forms {
		form.took = [2][]time.Duration{}
		for range *pairsFlag {
			requests = append(requests, request{form, existing}, request{form, missing})
		}
	}
	rand.Shuffle(len(requests), func(i, j int) { requests[i], requests[j] = requests[j], requests[i] })

	var protocols http.Protocols
	protocols.SetHTTP2(true)
	transport := &http.Transport{
		TLSClientConfig: w.tlsConfig(0),
		Protocols:       &protocols,
	}
	t.Cleanup(transport.CloseIdleConnections)
	send := func(r request) (time.Duration, error) {
		url := w.Component(slowProxy).URL + r.form.paths[r.about]
		req, err := http.NewRequestWithContext(t.Context(), r.form.method, url, strings.NewReader(r.form.bodies[r.about]))
		if err != nil {
			return 0, err
		}
		req.Header.Set("Content-Type", "application/json")
		start := time.Now()
		res, err := transport.RoundTrip(req)
		if err != nil {
			return 0, err
		}
		defer func() { _ = res.Body.Close() }()
		if _, err := io.Copy(io.Discard, res.Body); err != nil {
			return 0, err
		}
		if res.StatusCode != http.StatusForbidden {
			return 0, fmt.Errorf("%s %s: %s", r.form.method, url, res.Status)
		}
		return time.Since(start), nil
	}
	_, err := send(requests[0]) // establishes the connection
	require.NoError(t, err)
	var mu sync.Mutex
	workqueue.ParallelizeUntil(t.Context(), 2**workersFlag, len(requests), func(i int) { // most workers wait
		r := requests[i]
		took, err := send(r)
		mu.Lock()
		defer mu.Unlock()
		if assert.NoError(t, err) {
			r.form.took[r.about] = append(r.form.took[r.about], took)
		}
	})
}

// compare returns by how many standard deviations the ranks of the first times exceed their
// expected value, and the difference of the medians.
func compare(took [2][]time.Duration) (deviation float64, difference time.Duration) {
	type ranked struct {
		took  time.Duration
		first bool
	}
	var all []ranked
	for about, times := range took {
		for _, d := range times {
			all = append(all, ranked{d, about == 0})
		}
	}
	slices.SortFunc(all, func(a, b ranked) int { return int(a.took - b.took) })
	n, m := float64(len(took[0])), float64(len(took[1]))
	ranks := 0.0
	for i := 0; i < len(all); {
		end := i
		for end < len(all) && all[end].took == all[i].took {
			end++
		}
		for _, r := range all[i:end] {
			if r.first {
				ranks += float64(i+end+1) / 2 // the mean rank of equal times
			}
		}
		i = end
	}
	u := ranks - n*(n+1)/2
	return (u - n*m/2) / math.Sqrt(n*m*(n+m+1)/12), median(took[0]) - median(took[1])
}

func median(times []time.Duration) time.Duration {
	slices.Sort(times)
	return times[len(times)/2]
}

// TestCompare checks that the comparison detects differences without false positives.
func TestCompare(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	sample := func(late time.Duration, noise float64) []time.Duration {
		out := make([]time.Duration, *pairsFlag)
		for i := range out {
			// As on a busy machine, most delays are small and some are large.
			out[i] = slowTimeout + late + time.Duration(random.ExpFloat64()*noise*float64(time.Millisecond))
		}
		return out
	}
	worst := 0.0
	for range 2000 {
		deviation, _ := compare([2][]time.Duration{sample(0, 3), sample(0, 3)})
		worst = max(worst, math.Abs(deviation))
	}
	require.Less(t, worst, maxDeviation)
	for _, late := range []time.Duration{-3 * time.Millisecond, 3 * time.Millisecond} {
		deviation, difference := compare([2][]time.Duration{sample(late, 2), sample(0, 2)})
		require.Greater(t, math.Abs(deviation), maxDeviation)
		require.Equal(t, late > 0, difference > maxDifference)
	}
	deviation, _ := compare([2][]time.Duration{{1, 1, 1}, {1, 1, 1}})
	require.Zero(t, deviation)
}
