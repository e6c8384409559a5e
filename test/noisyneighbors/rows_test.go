package noisyneighbors

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/shardplane/shardplane/test/harness"
)

// conversion checks that requests which wait for the attacker's conversion webhook use no seats of
// others, and that few of them call it concurrently.
func conversion(t *testing.T, w *world) {
	const limit, waiting = 64, 80
	called, release := make(chan struct{}, waiting), make(chan struct{})
	hook := hangingWebhook(t, called, release)
	group := w.id + ".hanging.example"
	crd := things(group, "v1", "v2")
	convertBy(crd, hook.URL, harness.CABundle(hook))
	w.attacker.define(t, crd)
	w.attacker.must(t, http.MethodPost, "/apis/"+group+"/v1/things", thing(group, "v1", "one", ""))
	w.quiet.define(t, things(group, "v1"))
	account := w.serviceAccount(t, "converting")

	before := w.metric(t, "shardplane_fairness_paused_requests")
	paused := func() float64 { return w.metric(t, "shardplane_fairness_paused_requests") - before }
	var pending sync.WaitGroup
	for range waiting {
		pending.Go(func() {
			_, _, _ = account.call(t.Context(), http.MethodGet, "/apis/"+group+"/v2/things/one?timeout=30s", "")
		})
	}
	t.Cleanup(pending.Wait)
	unblock := sync.OnceFunc(func() { close(release) })
	t.Cleanup(unblock)
	require.Eventually(t, func() bool { return len(called) == limit && countersMatch(paused() == waiting) }, testTimeout, tick, "requests that wait for the webhook occupy seats")
	// The same kind and others, reads and writes, also of the same logical cluster.
	w.quiet.must(t, http.MethodPost, "/apis/"+group+"/v1/things", thing(group, "v1", "mine", ""))
	w.quiet.must(t, http.MethodGet, "/apis/"+group+"/v1/things", "")
	w.quiet.must(t, http.MethodGet, "/apis/"+group+"/v1/things/mine", "")
	w.quiet.must(t, http.MethodGet, configMaps, "")
	w.quiet.define(t, things("after."+group, "v1"))
	w.attacker.must(t, http.MethodGet, "/apis/"+group+"/v1/things/one", "")
	require.Len(t, called, limit, "concurrent calls")
	// An update converts the object to the version in its managed fields.
	one, err := w.attacker.dyn.Resource(schema.GroupVersionResource{Group: group, Version: "v1", Resource: "things"}).Get(t.Context(), "one", metav1.GetOptions{})
	require.NoError(t, err)
	pending.Go(func() {
		_, _, _ = account.call(t.Context(), http.MethodPut, "/apis/"+group+"/v1/things/one", fmt.Sprintf(`{"apiVersion":"%[1]s/v1","kind":"Thing","text":"x","metadata":{"name":"one","resourceVersion":"%[2]s",
			"managedFields":[{"manager":"other","operation":"Apply","apiVersion":"%[1]s/v2","fieldsType":"FieldsV1","fieldsV1":{"f:text":{}}}]}}`, group, one.GetResourceVersion()))
	})
	require.Eventually(t, func() bool { return countersMatch(paused() == waiting+1) }, testTimeout, tick, "the update occupies a seat")
	unblock()
	pending.Wait()
	require.Eventually(t, func() bool { return countersMatch(paused() == 0) }, testTimeout, tick)
}

// watches checks that a watch of the quiet tenant is not interrupted and contains only its own
// events, while the attacker opens watches and writes.
func watches(t *testing.T, w *world) {
	// A selector that uses all slots is only rejected as invalid when no other watch is open.
	const perSlot = 4
	w.attacker.untilResponse(t, http.MethodGet, "/api/v1/configmaps?watch=true&labelSelector="+url.QueryEscape(strings.Repeat("!a,", perSlot*(maxWatches-1)-1)+"!a"), "", http.StatusBadRequest, "", "watches remain open in the attacker's logical cluster")

	mine := harness.Create(t, w.quiet.kube.CoreV1().ConfigMaps("default"), configMap("mine-"+w.id))
	t.Cleanup(func() { w.quiet.remove(t, configMaps+"/"+mine.Name) })
	options := metav1.ListOptions{ResourceVersion: mine.ResourceVersion}
	quiet, err := w.quiet.kube.CoreV1().ConfigMaps("default").Watch(t.Context(), options)
	require.NoError(t, err)
	t.Cleanup(quiet.Stop)

	// Each event of any logical cluster would be compared with these selectors.
	for _, selector := range []string{strings.Repeat("!a,", 200) + "!a", "a=" + strings.Repeat("b", 600<<10)} {
		code, body, err := w.attacker.call(t.Context(), http.MethodGet, "/api/v1/configmaps?watch=true&labelSelector="+url.QueryEscape(selector), "")
		require.NoError(t, err)
		require.Equal(t, http.StatusBadRequest, code, "%s", body)
		require.Contains(t, string(body), "at most")
	}

	const streams, writes, path = 40, 120, "/api/v1/configmaps?watch=true"
	for range streams {
		code, _, message := w.attacker.watch(t, path)
		require.Equal(t, http.StatusOK, code, message)
	}
	code, _, message := w.attacker.watch(t, path+"&labelSelector="+url.QueryEscape(strings.Repeat("!a,", 127)+"!a"))
	require.Equal(t, http.StatusTooManyRequests, code, "a large selector does not use several slots: %s", message)
	opened := streams
	for code = http.StatusOK; code == http.StatusOK; opened++ {
		var retryAfter string
		if code, retryAfter, message = w.attacker.watch(t, path); code != http.StatusOK {
			require.Equal(t, http.StatusTooManyRequests, code, message)
			require.NotEmpty(t, retryAfter)
			require.Contains(t, message, "--limit watches-per-cluster=")
			break
		}
	}
	require.Equal(t, maxWatches/2, opened, "one user does not get half of the watches")
	for _, other := range []*tenant{w.serviceAccount(t, "watching"), w.quiet} {
		code, _, message = other.watch(t, path)
		require.Equal(t, http.StatusOK, code, message)
	}
	var writers sync.WaitGroup
	for part := range 4 {
		writers.Go(func() {
			for i := range writes / 4 {
				created, err := w.attacker.kube.CoreV1().ConfigMaps("default").Create(t.Context(), configMap(fmt.Sprintf("%s-%d-%d", w.id, part, i)), metav1.CreateOptions{})
				if err != nil {
					t.Errorf("create: %v", err)
					return
				}
				if err := w.attacker.kube.CoreV1().ConfigMaps("default").Delete(t.Context(), created.Name, metav1.DeleteOptions{}); err != nil {
					t.Errorf("delete: %v", err)
				}
			}
		})
	}
	writers.Wait()
	mine.Data = map[string]string{"after": "the flood"}
	_, err = w.quiet.kube.CoreV1().ConfigMaps("default").Update(t.Context(), mine, metav1.UpdateOptions{})
	require.NoError(t, err)
	for {
		event, open := <-quiet.ResultChan()
		require.True(t, open, "the quiet tenant's watch has ended")
		require.Equal(t, watch.Modified, event.Type, "%v", event.Object)
		got, ok := event.Object.(*corev1.ConfigMap)
		require.True(t, ok)
		if got.Name != observedName { // updated continuously
			require.Equal(t, "the flood", got.Data["after"], "%v", got)
			return
		}
	}
}

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"text": strings.Repeat("x", 4<<10)}}
}
