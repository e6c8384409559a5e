package relay

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
)

const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://localhost:1"}}]
contexts: [{name: c, context: {cluster: c}}]
current-context: c
`

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "k"), []byte(kubeconfig), 0o600))
	for _, tc := range []struct{ name, content, wrong string }{
		{"good", "relays:\n- {from: {name: global, kubeconfig: k}, select: {scope: installation}}\n- {from: {name: us, kubeconfig: k}}", ""},
		{"none", "relays: []", "no cache server is specified"},
		{"unknown field", "relays:\n- {to: {name: global}}", `unknown field "to"`},
		{"no name", "relays:\n- {from: {kubeconfig: k}}", `relays[0] (""): from.name: use up to 63`},
		{"no kubeconfig", "relays:\n- {from: {name: global}}", "from.kubeconfig: must be specified"},
		{"missing kubeconfig", "relays:\n- {from: {name: global, kubeconfig: other}}", "other: no such file"},
		{"itself", "relays:\n- {from: {name: eu, kubeconfig: k}}", "cannot relay from itself"},
		{"twice", "relays:\n- {from: {name: us, kubeconfig: k}}\n- {from: {name: us, kubeconfig: k}}", "same as relays[0]"},
		{"scope", "relays:\n- {from: {name: us, kubeconfig: k}, select: {scope: region}}", `unsupported value "region": use "installation"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			file := filepath.Join(dir, "relays.yaml")
			require.NoError(t, os.WriteFile(file, []byte(tc.content), 0o600))
			config, err := Load(file, "eu")
			if tc.wrong != "" {
				require.ErrorContains(t, err, tc.wrong)
				require.ErrorContains(t, err, file)
				return
			}
			require.NoError(t, err)
			require.Equal(t, filepath.Join(dir, "k"), config.Relays[0].From.Kubeconfig)
		})
	}
	_, err := Load(filepath.Join(dir, "missing"), "eu")
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestCheck checks the errors for sources that are not the expected cache server.
func TestCheck(t *testing.T) {
	for _, tc := range []struct {
		name, response, wrong string
		status                int
		behind                time.Duration
		refused               bool
	}{
		{name: "expected cache server", status: 200, response: `{"dataID":"1","name":"global","form":1}`},
		{name: "clock skew", status: 200, response: `{"dataID":"1","name":"global","form":1}`, behind: time.Hour},
		{name: "itself", status: 200, response: `{"dataID":"0","name":"eu","form":1}`, wrong: "this cache server itself", refused: true},
		{name: "duplicate name", status: 200, response: `{"dataID":"1","name":"eu","form":1}`, wrong: "specify unique names with --cache-name", refused: true},
		{name: "other name", status: 200, response: `{"dataID":"1","name":"us","form":1}`, wrong: `its name is "us" instead of "global"`, refused: true},
		{name: "no name", status: 200, response: `{"dataID":"1","form":1}`, wrong: `its name is "" instead of "global"`, refused: true},
		{name: "a shard", status: 404, response: `404 page not found`, wrong: "is not a cache server of this version", refused: true},
		{name: "another server", status: 200, response: `<html>`, wrong: "is not a cache server of this version", refused: true},
		{name: "forbidden", status: 403, response: `no`, wrong: "must be for the group shardplane:cache:readers", refused: true},
		{name: "internal error", status: 500, response: `etcd`, wrong: "request for digests: 500: etcd"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Date", time.Now().Add(-tc.behind).UTC().Format(http.TimeFormat))
				w.WriteHeader(tc.status)
				_, _ = w.Write([]byte(tc.response))
			}))
			defer server.Close()
			s := &source{From: From{Name: "global", Kubeconfig: "g"}, self: Self{Name: "eu", DataID: "0"}, metrics: newMetrics(nil), factory: factoryOf(t, server)}
			err := s.check(t.Context())
			require.Equal(t, tc.behind > 0, s.skewed)
			if tc.wrong == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tc.wrong)
			require.Equal(t, tc.refused, errors.Is(err, errRefused))
		})
	}
}

func factoryOf(t *testing.T, server *httptest.Server) *client.Factory {
	t.Helper()
	f, err := client.NewFactory(&rest.Config{Host: server.URL})
	require.NoError(t, err)
	t.Cleanup(f.CloseIdleConnections)
	return f
}

// TestChoose checks the choice of the path for a shard.
func TestChoose(t *testing.T) {
	up, down, back := &source{}, &source{lastErr: context.DeadlineExceeded, since: time.Now().Add(-time.Hour)}, &source{lastErr: context.DeadlineExceeded, since: time.Now()}
	for _, tc := range []struct {
		name   string
		routes []route
		now    *source
		want   *source
	}{
		{name: "none"},
		{name: "none left", now: up},
		{name: "nearest source", routes: []route{{source: up}, {source: back}}, want: up},
		{name: "reachable source", routes: []route{{source: down}, {source: up}}, want: up},
		{name: "current source briefly unreachable", routes: []route{{source: up}, {source: back}}, now: back, want: back},
		{name: "current source unreachable for long", routes: []route{{source: down}, {source: up}}, now: down, want: up},
		{name: "no other source", routes: []route{{source: down}}, now: down, want: down},
		{name: "all unreachable", routes: []route{{source: down}, {source: &source{lastErr: context.DeadlineExceeded}}}, want: down},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var now *relayedShard
			if tc.now != nil {
				now = &relayedShard{source: tc.now}
			}
			r := &Relays{self: Self{Timing: Timing{}.withDefaults()}}
			got := r.choose(tc.routes, now)
			if tc.want == nil {
				require.Nil(t, got)
				return
			}
			require.NotNil(t, got)
			require.Same(t, tc.want, got.source)
		})
	}
}
