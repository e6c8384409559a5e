package e2e

import (
	"bytes"
	"encoding/base64"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/test/harness"
)

// TestSecretsInLogs sends valid and invalid credentials in every way that clients have to servers with the highest log level, and checks
// that the logs do not contain them.
func TestSecretsInLogs(t *testing.T) {
	t.Parallel()
	most := []string{"-v=10"}
	c := harness.Start(t, harness.Options{Mode: harness.Processes, ExtraArgs: map[string][]string{"shard": most, "front-proxy": most, "cache-server": most}})
	admin := harness.Clientset(t, c.Proxy(), "root")
	secrets := map[string]string{}

	secrets["a Secret"] = "0content1of2a3secret4that5is6long7"
	harness.Create(t, admin.CoreV1().Secrets("default"), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"k": secrets["a Secret"]},
	})
	harness.Create(t, admin.CoreV1().ServiceAccounts("default"), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}})
	issued, err := admin.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "robot", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	require.NoError(t, err)
	token := issued.Status.Token
	secrets["a token"] = token[strings.LastIndexByte(token, '.')+1:]
	review := harness.Create(t, admin.AuthenticationV1().TokenReviews(), &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}})
	require.True(t, review.Status.Authenticated)

	harness.Create(t, admin.CoreV1().Secrets("default"), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "kept", Annotations: map[string]string{corev1.ServiceAccountNameKey: "robot"}}, Type: corev1.SecretTypeServiceAccountToken,
	})
	kept := func() string {
		secret, err := admin.CoreV1().Secrets("default").Get(t.Context(), "kept", metav1.GetOptions{})
		if err != nil {
			return ""
		}
		return string(secret.Data["token"])
	}
	require.Eventually(t, func() bool { return kept() != "" }, testTimeout, 10*time.Millisecond, "the secret does not contain a token")
	c.Component("root").Restart() // which lists the secret again
	require.Eventually(t, func() bool { return kept() != "" }, testTimeout, 10*time.Millisecond, "the secret cannot be read after the restart")
	// The encodings in JSON and protobuf.
	secrets["a kept token, encoded"] = base64.StdEncoding.EncodeToString([]byte(kept()))[40:80]
	secrets["a kept token"] = kept()[len(kept())-40:]

	base64url := base64.RawURLEncoding.EncodeToString
	for what, send := range map[string]func(r *http.Request, secret string){
		"a wrong token":      func(r *http.Request, secret string) { r.Header.Set("Authorization", "Bearer "+secret) },
		"a password":         func(r *http.Request, secret string) { r.SetBasicAuth("jane", secret) },
		"a token in a query": func(r *http.Request, secret string) { r.URL.RawQuery = url.Values{"access_token": {secret}}.Encode() },
		"another scheme":     func(r *http.Request, secret string) { r.Header.Set("Authorization", "Negotiate "+secret) },
		"a proxy's password": func(r *http.Request, secret string) { r.Header.Set("Proxy-Authorization", "Basic "+secret) },
		"a cookie":           func(r *http.Request, secret string) { r.Header.Set("Cookie", "session="+secret) },
		"a WebSocket's token": func(r *http.Request, secret string) {
			r.Header.Set("Connection", "Upgrade")
			r.Header.Set("Upgrade", "websocket")
			r.Header.Set("Sec-WebSocket-Protocol", "base64url.bearer.authorization.k8s.io."+base64url([]byte(secret))+", v5.channel.k8s.io")
		},
	} {
		secret := strings.ReplaceAll(what, " ", "-") + "-is-a-secret-of-this-test"
		secrets[what] = secret
		secrets[what+", encoded"] = base64.StdEncoding.EncodeToString([]byte(secret))[:32]
		secrets["jane with "+what] = base64.StdEncoding.EncodeToString([]byte("jane:" + secret))[:32]
		for _, server := range []*rest.Config{c.Proxy(), c.Shard(0), c.Cache()} {
			for _, config := range []*rest.Config{server, rest.AnonymousClientConfig(server)} {
				transport, err := rest.TransportFor(config)
				require.NoError(t, err)
				request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.Host+"/clusters/root/api/v1/namespaces/default/secrets/s", http.NoBody)
				require.NoError(t, err)
				send(request, secret)
				response, err := transport.RoundTrip(request)
				require.NoError(t, err)
				require.NoError(t, response.Body.Close())
			}
		}
	}
	for _, server := range []*rest.Config{c.Proxy(), c.Shard(0)} {
		config := rest.AnonymousClientConfig(harness.In(server, "root"))
		config.BearerToken = token
		robot := harness.Clientset(t, config, "")
		harness.Create(t, robot.AuthenticationV1().SelfSubjectReviews(), &authenticationv1.SelfSubjectReview{})
	}

	logs, err := filepath.Glob(filepath.Join(c.Dir, "*.log"))
	require.NoError(t, err)
	require.Len(t, logs, 3)
	for _, log := range logs {
		content := harness.ReadFile(t, log)
		if filepath.Base(log) != "cache-server.log" { // sends no requests
			require.Contains(t, string(content), "curl -v", "%s does not contain the messages of client-go at this level", log)
		}
		for what, secret := range secrets {
			if i := leak(content, secret); i >= 0 {
				t.Errorf("%s contains %s: …%s", filepath.Base(log), what, content[max(0, i-300):min(len(content), i+100)])
			}
		}
	}
}

// leak returns the position of a secret in a log, or -1. Protobuf bodies are dumped with sixteen bytes per line.
func leak(log []byte, secret string) int {
	const line = 16
	for from := range max(1, min(line, len(secret)-line+1)) {
		if i := bytes.Index(log, []byte(secret[from:min(len(secret), from+line)])); i >= 0 {
			return i
		}
	}
	return -1
}
