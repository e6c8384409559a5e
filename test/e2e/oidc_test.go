package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/test/harness"
)

// TestOIDC checks that front-proxy and shard authenticate users of dex, remove reserved names, and reject other tokens.
func TestOIDC(t *testing.T) {
	t.Parallel()
	dex := newIssuer(t)
	file := dex.configuration()
	args := []string{"--authentication-config=" + file}
	c := harness.Start(t, harness.Options{ExtraArgs: map[string][]string{"front-proxy": args, "shard": args}}) // the issuer is not running
	dex.start()
	k := newKubectl(t, c)
	k.run(t, "root", workspaceYAML("oidc", "root"), "apply", "-f", "-")
	k.run(t, "root", "", "wait", "--for=jsonpath={.status.phase}=Ready", "workspace/oidc", "--timeout=60s")
	k.run(t, "root:oidc", "", "create", "clusterrolebinding", "access", "--clusterrole=system:kcp:workspace:access", "--group=system:authenticated")
	k.run(t, "root:oidc", "", "create", "clusterrolebinding", "devs", "--clusterrole=cluster-admin", "--group=devs")

	s := oidcSuite{t: t, dex: dex, servers: map[string]*rest.Config{"front-proxy": c.Proxy(), "shard": c.Shard(0)}}
	jane := identity{Username: "jane", Groups: []string{"devs"}}
	first := dex.token(jane, audience, "/token")
	for name := range s.servers {
		require.Eventually(t, func() bool { _, err := s.whoami(name, first); return err == nil }, testTimeout, 50*time.Millisecond,
			"%s did not accept the issuer, which was not running at its start", name)
	}
	s.testNames()
	s.testTooManyGroups(first)
	s.testForgeries(dex.token(jane, audience, "/token"))

	t.Run("kubectl", func(t *testing.T) {
		as := func(token string, args ...string) (string, error) {
			return k.try(t, "root:oidc", "", append([]string{"--kubeconfig=/dev/null", "--insecure-skip-tls-verify", "--token=" + token}, args...)...)
		}
		output, err := as(first, "auth", "whoami")
		require.NoError(t, err, output)
		require.Regexp(t, `Username +jane\nGroups +\[devs system:authenticated\]\nExtra: example.com/subject`, output)
		output, err = as(first, "create", "configmap", "of-jane")
		require.NoError(t, err, output)
		output, err = as(dex.token(jane, audience, "/expired/token"), "get", "configmaps")
		require.Error(t, err)
		require.Contains(t, output, "You must be logged in to the server")
	})
	t.Run("the issuer restarts with other keys", func(t *testing.T) {
		unseen, late := dex.token(jane, audience, "/token"), dex.token(jane, audience, "/token")
		dex.stop()
		for name := range s.servers {
			user, err := s.whoami(name, unseen)
			require.NoError(t, err, "the keys of a stopped issuer must be cached")
			require.Equal(t, "jane", user.Username)
		}
		dex.start()
		rotated := dex.token(jane, audience, "/token")
		for name := range s.servers {
			_, err := s.whoami(name, rotated)
			require.True(t, apierrors.IsUnauthorized(err), "the keys must be cached for the time that dex specifies: %v", err)
		}
		content := harness.ReadFile(t, file)
		require.NoError(t, os.WriteFile(file, append(content, "# changed\n"...), 0o600))
		for name := range s.servers {
			require.Eventually(t, func() bool { _, err := s.whoami(name, rotated); return err == nil }, testTimeout, 10*time.Millisecond,
				"%s did not load the new keys", name)
			_, err := s.whoami(name, late)
			require.True(t, apierrors.IsUnauthorized(err), "the former keys must be rejected: %v", err)
		}
	})
}

// oidcSuite sends requests with tokens of dex to servers.
type oidcSuite struct {
	t       *testing.T
	dex     *issuer
	servers map[string]*rest.Config
}

func (s *oidcSuite) whoami(server, token string) (authenticationv1.UserInfo, error) {
	s.t.Helper()
	config := rest.AnonymousClientConfig(harness.In(s.servers[server], "root:oidc"))
	config.BearerToken = token
	client := harness.Clientset(s.t, config, "")
	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(s.t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return authenticationv1.UserInfo{}, err
	}
	return review.Status.UserInfo, nil
}

// testNames checks user and group names in tokens.
func (s *oidcSuite) testNames() {
	many := make([]string, 2000)
	for n := range many {
		many[n] = fmt.Sprintf("group-%04d-of-a-long-list", n)
	}
	for what, tc := range map[string]struct {
		identity

		want []string // groups; nil: 401
	}{
		"groups":               {identity{"jane", []string{"devs", "ops"}}, []string{"devs", "ops"}},
		"system groups":        {identity{"jane", []string{"system:masters", "devs", "system:kcp:logical-cluster-admin", "system:serviceaccounts", "system:cluster:root"}}, []string{"devs"}},
		"many groups":          {identity{"jane", many}, many},
		"system user":          {identity{"system:apiserver", nil}, nil},
		"header in a name":     {identity{"jane\r\nX-Remote-Group: system:masters", nil}, nil},
		"space before a group": {identity{"jane", []string{" system:masters"}}, nil},
	} {
		token := s.dex.token(tc.identity, audience, "/token")
		for name := range s.servers {
			user, err := s.whoami(name, token)
			if tc.want == nil {
				require.True(s.t, apierrors.IsUnauthorized(err), "%s, %s: %v", what, name, err)
				continue
			}
			require.NoError(s.t, err, "%s, %s", what, name)
			require.Equal(s.t, "jane", user.Username)
			require.Equal(s.t, append(slices.Clip(tc.want), "system:authenticated"), user.Groups, "%s, %s", what, name)
			require.Len(s.t, user.Extra["example.com/subject"], 1)
		}
	}
}

// testTooManyGroups checks the response to a user with more groups than fit into headers.
func (s *oidcSuite) testTooManyGroups(others string) {
	all := make([]string, 25_000)
	for n := range all {
		all[n] = fmt.Sprintf("group-%05d", n)
	}
	token := s.dex.token(identity{"jane", all}, audience, "/token")
	_, err := s.whoami("front-proxy", token)
	require.ErrorContains(s.t, err, "reduce the number of groups")
	_, err = s.whoami("front-proxy", others)
	require.NoError(s.t, err)
}

// testForgeries checks that a token is rejected if it is for another purpose. TestOIDC of pkg/authn covers forged tokens.
func (s *oidcSuite) testForgeries(good string) {
	jane := identity{Username: "jane", Groups: []string{"devs"}}
	parts := strings.Split(good, ".")
	for what, token := range map[string]string{
		"for another audience": s.dex.token(jane, "others", "/token"),
		"expired":              s.dex.token(jane, audience, "/expired/token"),
		"of another issuer":    s.dex.token(jane, audience, "/other/token"),
		"without a signature":  parts[0] + "." + parts[1] + ".",
		"long":                 strings.Repeat("a", 200<<10) + "." + parts[1] + "." + parts[2],
	} {
		for name := range s.servers {
			_, err := s.whoami(name, token)
			require.True(s.t, apierrors.IsUnauthorized(err), "%s, %s: %v", what, name, err)
			require.NotContains(s.t, err.Error(), s.dex.url, "%s, %s: the error must not contain the URL of the issuer", what, name)
		}
	}
	for name := range s.servers {
		_, err := s.whoami(name, good)
		require.NoError(s.t, err, "the original token must be accepted")
	}
}
