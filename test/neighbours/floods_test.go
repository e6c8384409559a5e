package neighbours

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// hanging: requests of the attacker that hang in its webhook take nothing that
// others need, and have a bound of their own.
func hanging(t *testing.T, w *world) {
	const flood = maxOfCluster
	asked, release := make(chan struct{}, flood), make(chan struct{})
	unblock := sync.OnceFunc(func() { close(release) })
	hook := hangs(t, asked, release)
	robot := w.robot(t, "flooding")
	hooks := w.attacker.kube.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	_, err := hooks.Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: w.mark},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "hanging.example.com", AdmissionReviewVersions: []string{"v1"}, TimeoutSeconds: new(int32(30)),
			SideEffects:   new(admissionregistrationv1.SideEffectClassNone),
			FailurePolicy: new(admissionregistrationv1.Ignore),
			ClientConfig:  admissionregistrationv1.WebhookClientConfig{URL: new(hook.URL), CABundle: caOf(hook)},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			}},
		}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)

	ctx, stop := context.WithCancel(t.Context())
	var pending sync.WaitGroup
	refused := make(chan int, flood)
	post := func(i int) {
		pending.Go(func() {
			code, _, err := robot.call(ctx, http.MethodPost, "/api/v1/namespaces/default/configmaps?dryRun=All", fmt.Sprintf(`{"metadata":{"name":"flood-%d"}}`, i))
			if err == nil && code != http.StatusCreated {
				select {
				case refused <- code:
				default: // that many have been told
				}
			}
		})
	}
	t.Cleanup(func() {
		unblock()
		stop()
		pending.Wait()
		_ = hooks.Delete(context.WithoutCancel(ctx), w.mark, metav1.DeleteOptions{})
	})
	// The webhook is there some time after its configuration.
	require.Eventually(t, func() bool { post(0); return len(asked) > 0 }, testTimeout, tick, "the webhook is called")
	for i := range flood {
		post(i + 1)
	}
	require.Equal(t, http.StatusTooManyRequests, <-refused, "one user takes no more than are left for others of the logical cluster")
	require.Eventually(t, func() bool { return len(asked) > maxWriting }, testTimeout, tick, "more hang than may execute")
	for i := range 2 * maxWriting {
		w.quiet.must(t, http.MethodPost, "/api/v1/namespaces/default/configmaps?dryRun=All", fmt.Sprintf(`{"metadata":{"name":"quiet-%d"}}`, i))
	}
	w.attacker.must(t, http.MethodGet, "/api/v1/namespaces/default/configmaps", "")
	unblock() // all of them go on together, and may not execute together
	for i := range 2 * maxWriting {
		w.quiet.must(t, http.MethodPost, "/api/v1/namespaces/default/configmaps?dryRun=All", fmt.Sprintf(`{"metadata":{"name":"quieter-%d"}}`, i))
	}
}

// events: what the watches of a logical cluster hold of large events is bounded in
// all.
func events(t *testing.T, w *world) {
	const size, streams, path = 768 << 10, 40, "/api/v1/namespaces/default/secrets"
	w.attacker.create(t, path, fmt.Sprintf(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":%q},"data":{"a":%q}}`, w.mark, base64.StdEncoding.EncodeToString(make([]byte, size))))
	before := heap()
	got := 0
	for range streams {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.attacker.config.Host+path+"?watch=true&resourceVersion=0&fieldSelector=metadata.name%3D"+w.mark, http.NoBody)
		require.NoError(t, err)
		response, err := w.attacker.http.Do(r)
		require.NoError(t, err)
		t.Cleanup(func() { _ = response.Body.Close() })
		require.Equal(t, http.StatusOK, response.StatusCode)
		n, _ := io.CopyN(io.Discard, response.Body, size*4/3)
		if n > 0 {
			require.EqualValues(t, size*4/3, n)
			got++
		}
	}
	held := heap() - before
	t.Logf("%d of %d watches hold %d bytes", got, streams, held)
	require.LessOrEqual(t, got, maxWatchBytes/size)
	require.Positive(t, got)
	require.Less(t, held, uint64(6*maxWatchBytes), "three buffers of each largest event, and the client's")
	code, _, message := w.quiet.open(t, path+"?watch=true")
	require.Equal(t, http.StatusOK, code, message)
}

// slowBodies: writes whose bodies do not end take no seat, even of the logical
// cluster that they are for.
func slowBodies(t *testing.T, w *world) {
	const slow = 40
	var pending sync.WaitGroup
	t.Cleanup(pending.Wait)
	before := counters(t, "shardplane_bodies_waiting_bytes", nil)
	var ends []*io.PipeWriter
	for range slow {
		body, end := io.Pipe()
		ends = append(ends, end)
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.quiet.config.Host+"/api/v1/namespaces/default/configmaps", body)
		require.NoError(t, err)
		pending.Go(func() {
			if response, err := w.quiet.http.Do(r); err == nil {
				_ = response.Body.Close()
			}
		})
		pending.Go(func() { _, _ = end.Write([]byte("{")) })
	}
	t.Cleanup(func() {
		for _, end := range ends {
			_ = end.CloseWithError(io.ErrUnexpectedEOF)
		}
	})
	require.Eventually(t, func() bool {
		return seen(func() bool { return counters(t, "shardplane_bodies_waiting_bytes", nil)-before >= slow<<14 })
	}, testTimeout, tick, "the shard reads all of them")
	for i := range 5 {
		w.quiet.must(t, http.MethodPost, "/api/v1/namespaces/default/configmaps?dryRun=All", fmt.Sprintf(`{"metadata":{"name":"quick-%d"}}`, i))
	}
}

// ofBucket finds what tells the series of one histogram apart.
var ofBucket = regexp.MustCompile(`_(bucket|sum|count)\b|,?\ble="[^"]*"`)

// paths: what is asked for that there is not makes no series of any server, but for a few of what a
// server does for the first time meanwhile. A histogram is one.
func paths(t *testing.T, w *world) {
	strangers := append([]*tenant{w.attacker}, w.servers...)
	ask := func(n int) {
		for i := range n {
			name := fmt.Sprintf("%s-%d", w.mark, i)
			for _, path := range []string{"/" + name, "/apis/" + name + ".example/v1/" + name, "/clusters/" + name + "/api/v1/" + name, "/services/cache/shards/" + name + "/clusters/" + name + "/apis/" + name + "/v1/" + name} {
				for _, u := range strangers {
					_, _, err := u.call(t.Context(), http.MethodGet, path, "")
					require.NoError(t, err)
				}
			}
		}
	}
	ask(1)
	before := w.scrape(t)
	ask(20)
	made := map[string]bool{}
	for _, s := range w.fresh(t, before, w.scrape(t)) {
		made[ofBucket.ReplaceAllString(s, "")] = true
	}
	require.Less(t, len(made), 20, "series of 320 requests for what does not exist: %.5000v", made)
}
