package storage

import (
	"context"
	"encoding/base64"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/shardplane/shardplane/pkg/request"
)

func page(limit int64, token string) storage.ListOptions {
	opts := listOpts()
	opts.Predicate.Limit, opts.Predicate.Continue = limit, token
	return opts
}

// pages lists in pages and checks that all have the version of the first, and that those of a filtered list have no
// remaining count.
func pages(
	ctx context.Context, t *testing.T, s storage.Interface, key string, opts storage.ListOptions, filtered bool,
) []string {
	t.Helper()
	got, version := []string{}, ""
	for first := true; first || opts.Predicate.Continue != ""; first = false {
		pods := list(ctx, t, s, key, opts)
		require.LessOrEqual(t, len(pods.Items), int(opts.Predicate.Limit))
		got = append(got, names(pods.Items...)...)
		if first {
			version = pods.ResourceVersion
		}
		require.Equal(t, version, pods.ResourceVersion)
		if filtered {
			require.Nil(t, pods.RemainingItemCount)
		}
		opts.Predicate.Continue = pods.Continue
	}
	return got
}

func seedPages(t *testing.T, s storage.Interface) {
	t.Helper()
	for _, cluster := range []string{"aa", "bb", "cc"} {
		for _, namespace := range []string{"ns1", "ns2"} {
			for i := range 3 {
				create(in(t.Context(), cluster), t, s, newPod(namespace, fmt.Sprintf("pod-%d", i)))
			}
		}
	}
}

func TestPages(t *testing.T) {
	both(t, func(t *testing.T, s *tenantStorage) {
		seedPages(t, s)
		for _, ctx := range []context.Context{in(t.Context(), "bb"), request.WithWildcard(t.Context())} {
			for _, key := range []string{"/pods", "/pods/ns1"} {
				want := names(list(ctx, t, s, key, listOpts()).Items...)
				for _, limit := range []int64{1, 2, 5, 100} {
					require.Equal(t, want, pages(ctx, t, s, key, page(limit, ""), false), "%s by %d", key, limit)
				}
			}
		}
	})
}

func TestTokensOfAnotherRequest(t *testing.T) {
	both(t, func(t *testing.T, s *tenantStorage) {
		seedPages(t, s)
		ctx := in(t.Context(), "bb")
		token := list(ctx, t, s, "/pods/ns1", page(1, "")).Continue
		require.NotEmpty(t, token)
		wildcard := list(request.WithWildcard(t.Context()), t, s, "/pods", page(1, "")).Continue
		require.NotEmpty(t, wildcard)

		forge := func(start string) string {
			inner := base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"v":"meta.k8s.io/v1","rv":-1,"start":%q}`, start))
			c, err := s.collect(ctx, "/pods/ns1", page(1, ""))
			require.NoError(t, err)
			return sealToken(c.scope, inner)
		}
		cases := map[string]struct {
			ctx   context.Context //nolint:containedctx // the context is the test's input
			key   string
			token string
		}{
			"another cluster":             {in(t.Context(), "cc"), "/pods/ns1", token},
			"all clusters":                {request.WithWildcard(t.Context()), "/pods/ns1", token},
			"of all clusters":             {ctx, "/pods", wildcard},
			"another namespace":           {ctx, "/pods/ns2", token},
			"no namespace":                {ctx, "/pods", token},
			"changed":                     {ctx, "/pods/ns1", "A" + token[1:]},
			"cut":                         {ctx, "/pods/ns1", token[:len(token)-1]},
			"without seal":                {ctx, "/pods/ns1", token[:len(token)-17]},
			"garbage":                     {ctx, "/pods/ns1", "garbage"},
			"sealed garbage":              {ctx, "/pods/ns1", "garbage." + seal("", "garbage")},
			"forged, traversal":           {ctx, "/pods/ns1", forge("../../cc/ns1/pod-0")},
			"forged, inner traversal":     {ctx, "/pods/ns1", forge("x/../../../cc/ns1/pod-0")},
			"forged, nothing":             {ctx, "/pods/ns1", forge("")},
			"forged, absolute, traversal": {ctx, "/pods/ns1", forge("/../cc")},
		}
		for name, c := range cases {
			t.Run(name, func(t *testing.T) {
				err := s.GetList(c.ctx, c.key, page(1, c.token), &example.PodList{})
				require.Truef(t, apierrors.IsBadRequest(err), "%v", err)
				require.ErrorContains(t, err, "invalid continue token: ")
			})
		}

		// A forged token only returns objects that the user can read anyway.
		for _, start := range []string{"pod-1", "cc/ns1/pod-0", "/pod-0"} {
			pods := list(ctx, t, s, "/pods/ns1", page(100, forge(start)))
			for i := range pods.Items {
				require.Equal(t, "bb", pods.Items[i].Annotations["kcp.io/cluster"])
				require.Equal(t, "ns1", pods.Items[i].Namespace)
			}
		}
		opts := page(1, token)
		opts.ResourceVersion = "5"
		require.True(t, apierrors.IsBadRequest(s.GetList(ctx, "/pods/ns1", opts, &example.PodList{})))
	})
}
