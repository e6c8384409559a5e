package bodies

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/serving/ledger"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const largest = 1 << 20

func never(*http.Request, *apirequest.RequestInfo) bool { return false }

func refuse(w http.ResponseWriter, _ *http.Request, err error) {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		w.WriteHeader(int(status.Status().Code))
		_, _ = io.WriteString(w, status.Status().Message)
	}
}

// served returns clients, by protocol, of a server that reads bodies and echoes them.
func served(t *testing.T, reader *Reader, timeout time.Duration, handler http.Handler) (url string, clients map[string]*http.Client) {
	t.Helper()
	inner := reader.Wrap(handler, never, refuse)
	server := httptest.NewUnstartedServer(withGuard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := apirequest.WithRequestInfo(r.Context(), &apirequest.RequestInfo{Verb: "create"})
		subject := &user.DefaultInfo{Name: r.Header.Get("User")}
		if subject.Name == "admin" {
			subject.Groups = []string{user.SystemPrivilegedGroup}
		}
		inner.ServeHTTP(w, r.WithContext(apirequest.WithUser(ctx, subject)))
	}), timeout))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	http2 := server.Client()
	transport, ok := http2.Transport.(*http.Transport)
	require.True(t, ok)
	transport = transport.Clone()
	transport.ForceAttemptHTTP2, transport.TLSClientConfig.NextProtos = false, nil
	transport.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	t.Cleanup(transport.CloseIdleConnections)
	return server.URL, map[string]*http.Client{"HTTP/2": http2, "HTTP/1.1": {Transport: transport}}
}

func post(ctx context.Context, client *http.Client, url, subject string, body io.Reader) (int, string, error) {
	return send(ctx, client, http.MethodPost, url, subject, body)
}

func send(ctx context.Context, client *http.Client, method, url, subject string, body io.Reader) (int, string, error) {
	r, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("User", subject)
	res, err := client.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	return res.StatusCode, string(text), err
}

var echo = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })

func TestBodiesAreComplete(t *testing.T) {
	reader := NewReader(ledger.Limits{ledger.BodyBytes: 512 << 20, ledger.BodyBytesPerUser: 128 << 20}, largest, nil)
	url, clients := served(t, reader, bodyTimeout, echo)
	for proto, client := range clients {
		t.Run(proto, func(t *testing.T) {
			for _, size := range []int{0, 1, firstBuffer - 1, firstBuffer, firstBuffer + spare, 3 * firstBuffer, largest} {
				text := strings.Repeat("x", size)
				for _, body := range []io.Reader{strings.NewReader(text), io.MultiReader(strings.NewReader(text))} {
					code, got, err := post(t.Context(), client, url, "jane", body)
					require.NoError(t, err)
					require.Equal(t, http.StatusOK, code, got)
					require.Equal(t, text, got)
				}
			}
			for _, body := range []io.Reader{bytes.NewReader(make([]byte, largest+1)), io.MultiReader(bytes.NewReader(make([]byte, largest+1)))} {
				code, got, err := post(t.Context(), client, url, "jane", body)
				require.NoError(t, err)
				require.Equal(t, http.StatusRequestEntityTooLarge, code)
				require.Contains(t, got, "limit is 1048576")
			}
			require.Eventually(t, func() bool { return reader.memory.Held() == 0 }, time.Minute, time.Millisecond)
		})
	}
}

// TestSlowBodies checks that a request is executed only after its body was read, and that reading has a deadline.
func TestSlowBodies(t *testing.T) {
	executed := make(chan struct{}, 1)
	handler := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { executed <- struct{}{} })
	reader := NewReader(ledger.Limits{ledger.BodyBytes: 512 << 20, ledger.BodyBytesPerUser: 128 << 20}, largest, nil)
	url, clients := served(t, reader, 50*time.Millisecond, handler)
	for proto, client := range clients {
		t.Run(proto, func(t *testing.T) {
			body, rest := io.Pipe()
			defer func() { _ = rest.Close() }()
			go func() { _, _ = rest.Write([]byte("{")) }()
			code, got, err := post(t.Context(), client, url, "jane", body)
			require.NoError(t, err)
			require.Equal(t, http.StatusRequestTimeout, code)
			require.Contains(t, got, "did not arrive in time")
			require.Empty(t, executed)
			require.Eventually(t, func() bool { return reader.memory.Held() == 0 }, time.Minute, time.Millisecond)
			_, _, err = post(t.Context(), client, url, "jane", strings.NewReader("{}"))
			require.NoError(t, err)
			<-executed
		})
	}
}

// TestUnusedBodies checks that the body of a request with a verb without body is discarded,
// with the same deadline.
func TestUnusedBodies(t *testing.T) {
	url, clients := served(t, NewReader(ledger.Limits{ledger.BodyBytes: 512 << 20, ledger.BodyBytesPerUser: 128 << 20}, largest, nil), bodyTimeout, echo)
	hasty, hastyClients := served(t, NewReader(ledger.Limits{ledger.BodyBytes: 512 << 20, ledger.BodyBytesPerUser: 128 << 20}, largest, nil), 50*time.Millisecond, echo)
	for proto, client := range clients {
		t.Run(proto, func(t *testing.T) {
			for size, want := range map[int]int{1: http.StatusOK, largest: http.StatusOK, largest + 1: http.StatusRequestEntityTooLarge} {
				code, got, err := send(t.Context(), client, http.MethodGet, url, "jane", io.MultiReader(bytes.NewReader(make([]byte, size))))
				require.NoError(t, err)
				require.Equal(t, want, code, got)
				if want == http.StatusOK {
					require.Empty(t, got)
				}
			}
			body, rest := io.Pipe()
			defer func() { _ = rest.Close() }()
			code, _, err := send(t.Context(), hastyClients[proto], http.MethodGet, hasty, "jane", body)
			require.NoError(t, err)
			require.Equal(t, http.StatusRequestTimeout, code)
		})
	}
}

func TestMinRate(t *testing.T) {
	g := &guard{Reader: bytes.NewReader(make([]byte, 10*minBodyRate)), timeout: time.Hour, closeBody: func() error { return nil }}
	gaveUp := 0
	g.giveUp = func() { gaveUp++ }
	_, err := io.ReadFull(g, make([]byte, 10*minBodyRate))
	require.NoError(t, err)
	g.check()
	require.Zero(t, gaveUp, "the body has the minimum rate")
	g.check()
	require.Equal(t, 1, gaveUp)
	_, err = g.Read(make([]byte, 1))
	require.ErrorIs(t, err, ErrSlow)
	require.NoError(t, g.Close())
}

// TestBudget checks that the size of bodies in memory is limited for each user and in total.
func TestBudget(t *testing.T) {
	const each = 8 * (overhead + firstBuffer)
	reader := NewReader(ledger.Limits{ledger.BodyBytes: 3 * each, ledger.BodyBytesPerUser: each}, firstBuffer, nil)
	goOn := make(chan struct{})
	inside := make(chan struct{})
	url, clients := served(t, reader, bodyTimeout, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		inside <- struct{}{} // the body has not been read
		<-goOn
		_, _ = io.Copy(io.Discard, r.Body)
	}))
	done := make(chan int)
	start := func(subject string) (code int) {
		go func() {
			code, _, _ := post(t.Context(), clients["HTTP/2"], url, subject, io.MultiReader(strings.NewReader("{}")))
			done <- code
		}()
		select {
		case <-inside:
			return http.StatusOK
		case code := <-done:
			return code
		}
	}
	for range 8 {
		require.Equal(t, http.StatusOK, start("noisy"))
	}
	require.Equal(t, http.StatusTooManyRequests, start("noisy"))
	require.Equal(t, http.StatusOK, start("quiet"))
	require.Equal(t, http.StatusOK, start("admin"), "administrators must not be limited")
	for range 10 {
		goOn <- struct{}{}
		require.Equal(t, http.StatusOK, <-done)
	}
	require.Eventually(t, func() bool { return reader.memory.Held() == 0 }, time.Minute, time.Millisecond)
}
