package replication

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/controllers/replication/digest"
)

// TestHashesAgreeWithDecisions holds that the hashes of two sides are equal exactly if there is nothing
// to do, also of a replica that was encoded and decoded in between.
func TestHashesAgreeWithDecisions(t *testing.T) {
	hash := func(replica *unstructured.Unstructured) uint64 {
		t.Helper()
		text, err := json.Marshal(replica.Object)
		require.NoError(t, err)
		content := map[string]any{}
		require.NoError(t, utiljson.Unmarshal(text, &content))
		hash, err := HashReplica("root|amber", content)
		require.NoError(t, err)
		return hash
	}
	local := localObject(func(o *unstructured.Unstructured) {
		o.Object["spec"] = map[string]any{"float": 1.5, "whole": 2.0, "large": int64(1) << 60, "null": nil, "html": "<&>", "list": []any{}}
	})
	want, err := HashReplica("root|amber", Resource{}.desired(local).Object)
	require.NoError(t, err)
	for name, change := range map[string]func(*unstructured.Unstructured){
		"nothing":          func(*unstructured.Unstructured) {},
		"version":          func(o *unstructured.Unstructured) { o.SetResourceVersion("123") },
		"spec":             func(o *unstructured.Unstructured) { o.Object["spec"] = map[string]any{} },
		"no spec":          func(o *unstructured.Unstructured) { delete(o.Object, "spec") },
		"more":             func(o *unstructured.Unstructured) { o.Object["more"] = "x" },
		"labels":           func(o *unstructured.Unstructured) { o.SetLabels(map[string]string{"x": "y"}) },
		"no labels":        func(o *unstructured.Unstructured) { o.SetLabels(nil) },
		"annotations":      func(o *unstructured.Unstructured) { o.SetAnnotations(nil) },
		"finalizers":       func(o *unstructured.Unstructured) { o.SetFinalizers([]string{"a/b"}) },
		"kind":             func(o *unstructured.Unstructured) { o.SetKind("Other") },
		"original version": func(o *unstructured.Unstructured) { o.SetAnnotations(withVersion(o.GetAnnotations())) },
	} {
		replica := replicaOf(local, change)
		todo, _ := decide(Resource{}, local, replica)
		require.Equal(t, todo == actionNone, hash(replica) == want, name)
	}
}

func withVersion(annotations map[string]string) map[string]string {
	annotations["cache.kcp.io/original-resource-version"] = "8"
	return annotations
}

// TestMoments holds that a bucket counts only if nothing has happened to it between two moments.
func TestMoments(t *testing.T) {
	s := &session{ledger: newLedger(), expected: newExpected()}
	key := client.Key{Cluster: "root", Name: "a"}
	bucket, other := digest.BucketOf(key.String()), (digest.BucketOf(key.String())+1)%digest.Buckets
	still := func(between func()) bool {
		t.Helper()
		before := s.now()
		between()
		after := s.now()
		require.True(t, before.still(after, other))
		return before.still(after, bucket)
	}
	require.True(t, still(func() {}))
	require.False(t, still(func() { s.expected.begin(key)() }), "somebody has worked on it")
	var end func()
	require.False(t, still(func() { end = s.expected.begin(key) }))
	require.False(t, still(func() { end() }))
	require.True(t, still(func() {}))
	require.False(t, still(func() { s.ledger.tell(key, false) }), "somebody has to")
	require.False(t, still(func() {}))
	s.ledger.begin(key)
	s.ledger.done(key)
	require.True(t, still(func() {}))
}

func FuzzParseAnswer(f *testing.F) {
	f.Add(200, `{"dataID":"x","form":1,"keys":{"root|a":"1"}}`, false)
	f.Add(200, `{"dataID":"x","form":1,"buckets":["`+strings.Repeat(`0","`, digest.Buckets-1)+`1"]}`, true)
	f.Add(200, `{"dataID":"x","form":2}`, false)
	f.Add(400, ``, true)
	f.Add(503, `wait`, true)
	f.Fuzz(func(t *testing.T, status int, body string, ofResource bool) {
		answer, err := parseAnswer(status, []byte(body), ofResource)
		if err != nil {
			return
		}
		require.Equal(t, http.StatusOK, status)
		require.NotEmpty(t, answer.DataID)
		require.Equal(t, digest.Form, answer.Form)
		if ofResource {
			require.Len(t, answer.Buckets, digest.Buckets)
		}
	})
}
