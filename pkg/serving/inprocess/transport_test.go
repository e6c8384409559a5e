package inprocess

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// serve returns a client of handler, which is stopped when the test ends.
func serve(t *testing.T, handler http.HandlerFunc) *http.Client {
	t.Helper()
	leftovers := goleak.IgnoreCurrent()
	transport := NewTransport()
	stop := transport.Serve(t.Context(), handler)
	t.Cleanup(func() {
		stop()
		goleak.VerifyNone(t, leftovers)
	})
	return &http.Client{Transport: transport}
}

// get sends a GET that may fail.
func get(ctx context.Context, c *http.Client) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://server/", nil)
	if err != nil {
		return nil, err
	}
	return c.Do(r)
}

func send(t *testing.T, ctx context.Context, c *http.Client, method, url, body string) *http.Response { //nolint:revive // the test first, as everywhere
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer abc")
	response, err := c.Do(r)
	require.NoError(t, err)
	return response
}

// Handler and client see the same as with a connection.
func TestSameAsByConnection(t *testing.T) {
	type got struct {
		Method, URI, Path, Query, Host, Token, Body string
		Length                                      int64
	}
	echo := func(seen *got) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			*seen = got{r.Method, r.RequestURI, r.URL.Path, r.URL.RawQuery, r.Host, r.Header.Get("Authorization"), string(body), r.ContentLength}
			r.Header.Del("Authorization") // like a filter: the original request must not change
			r.URL.Path = "/changed"
			w.Header().Set("Warning", "299")
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusTeapot)
			w.WriteHeader(http.StatusOK)
			_, _ = io.WriteString(w, "response")
		}
	}
	var here, there got
	connected := httptest.NewUnstartedServer(echo(&there))
	connected.EnableHTTP2 = true
	connected.StartTLS()
	defer connected.Close()
	for method, body := range map[string]string{http.MethodGet: "", http.MethodPost: "some", http.MethodDelete: ""} {
		uri := "/a%2Fb/c?watch=1&x=%20"
		own := send(t, t.Context(), serve(t, echo(&here)), method, connected.URL+uri, body)
		other := send(t, t.Context(), connected.Client(), method, connected.URL+uri, body)
		require.Equal(t, there, here)
		require.NotEmpty(t, here.Token)
		require.Equal(t, other.Status, own.Status)
		require.Equal(t, http.StatusTeapot, own.StatusCode)
		require.Equal(t, other.ContentLength, own.ContentLength)
		require.Equal(t, other.Proto, own.Proto)
		require.Equal(t, "299", own.Header.Get("Warning"))
		require.Equal(t, "Bearer abc", own.Request.Header.Get("Authorization"))
		require.Equal(t, "/a/b/c", own.Request.URL.Path)
		for _, response := range []*http.Response{own, other} {
			content, err := io.ReadAll(response.Body)
			require.NoError(t, err)
			require.Equal(t, "response", string(content))
			require.NoError(t, response.Body.Close())
		}
	}
}

type contextKey struct{}

// The context of the request has the end of the caller's context, but not its values.
func TestContext(t *testing.T) {
	ended := make(chan error, 1)
	client := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Context().Value(contextKey{}) != nil {
			panic("the context contains a value of the caller")
		}
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		ended <- r.Context().Err()
	})
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), contextKey{}, 1))
	response := send(t, ctx, client, http.MethodGet, "https://server/", "")
	cancel()
	_, err := io.ReadAll(response.Body)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, <-ended, context.Canceled)
	require.NoError(t, response.Body.Close())

	response = send(t, t.Context(), client, http.MethodGet, "https://server/", "")
	require.NoError(t, response.Body.Close(), "closing the body must end the request")
	require.ErrorIs(t, <-ended, context.Canceled)
}

// A client that cancels a request does not wait for the handler.
func TestCanceledRequest(t *testing.T) {
	release := make(chan struct{})
	client := serve(t, func(http.ResponseWriter, *http.Request) { <-release })
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err := get(ctx, client)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	close(release)
}

// Each flushed part of a stream is readable, and unread data blocks the handler without loss.
func TestStream(t *testing.T) {
	next := make(chan string)
	client := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		for part := range next {
			_, _ = io.WriteString(w, part)
			w.(http.Flusher).Flush() //nolint:forcetypeassert // upstream requires it
		}
	})
	var response *http.Response
	for i, part := range []string{"one", "two", strings.Repeat("x", unread)} {
		sent := make(chan struct{})
		go func() {
			next <- part
			close(sent)
		}()
		if i == 0 {
			response = send(t, t.Context(), client, http.MethodGet, "https://server/", "")
			require.EqualValues(t, -1, response.ContentLength)
		}
		read := make([]byte, len(part))
		_, err := io.ReadFull(response.Body, read)
		require.NoError(t, err)
		require.Equal(t, part, string(read))
		<-sent
	}
	close(next)
	rest, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Empty(t, rest)
	require.NoError(t, response.Body.Close())

	large := make([]byte, 10*unread+7)
	_, _ = rand.Read(large)
	written := make(chan struct{})
	client = serve(t, func(w http.ResponseWriter, _ *http.Request) {
		n, err := w.Write(large)
		if n != len(large) || err != nil {
			panic(err)
		}
		close(written)
	})
	response = send(t, t.Context(), client, http.MethodGet, "https://server/", "")
	select {
	case <-written:
		t.Fatal("the handler wrote more than the buffer holds")
	case <-time.After(10 * time.Millisecond):
	}
	got, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.True(t, bytes.Equal(large, got))
	require.NoError(t, response.Body.Close())
}

// A response that is aborted or late is not considered complete.
func TestIncompleteResponses(t *testing.T) {
	begun := make(chan struct{})
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		// early is set if there is no response at all.
		early bool
		want  error
	}{
		"aborted": {handler: func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "half")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, want: io.ErrUnexpectedEOF},
		"aborted without output": {handler: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, early: true, want: io.ErrUnexpectedEOF},
		"panic":                  {handler: func(http.ResponseWriter, *http.Request) { panic("a bug") }, early: true, want: io.ErrUnexpectedEOF},
		"expired deadline": {handler: func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "half")
			_ = http.NewResponseController(w).Flush()
			<-begun
			_ = http.NewResponseController(w).SetWriteDeadline(time.Unix(1, 0))
			<-r.Context().Done()
			if _, err := io.WriteString(w, "more"); err == nil {
				panic("written after the deadline")
			}
		}, want: os.ErrDeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			response, err := get(t.Context(), serve(t, c.handler))
			if c.early {
				require.ErrorIs(t, err, c.want)
				return
			}
			require.NoError(t, err)
			if errors.Is(c.want, os.ErrDeadlineExceeded) {
				close(begun)
			}
			_, err = io.ReadAll(response.Body)
			require.ErrorIs(t, err, c.want)
			require.NoError(t, response.Body.Close())
		})
	}
}

// Requests wait for the handler, and are rejected after it was stopped, which ends running requests.
func TestStartAndStop(t *testing.T) {
	transport := NewTransport()
	client := &http.Client{Transport: transport}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := get(ctx, client)
	require.ErrorIs(t, err, context.Canceled)

	begun := make(chan *http.Response)
	go func() {
		response, _ := get(t.Context(), client)
		begun <- response
	}()
	stop := transport.Serve(t.Context(), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	response := <-begun
	require.NotNil(t, response)
	stop()
	rest, err := io.ReadAll(response.Body)
	require.NoError(t, err, "the handler has returned")
	require.Empty(t, rest)
	require.NoError(t, response.Body.Close())
	_, err = get(t.Context(), client)
	require.ErrorIs(t, err, errStopped)
}

// Concurrent streams and short requests are independent.
func TestConcurrent(t *testing.T) {
	client := serve(t, func(w http.ResponseWriter, r *http.Request) {
		content, err := io.ReadAll(r.Body)
		if err != nil {
			panic(err)
		}
		for i := range 200 {
			_, _ = w.Write(binary.BigEndian.AppendUint32(slices.Clip(content), uint32(i)))
			if i%7 == 0 {
				_ = http.NewResponseController(w).Flush()
			}
		}
	})
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			name := strings.Repeat(string(rune('a'+i)), 1+i*100)
			for range 5 {
				response := send(t, t.Context(), client, http.MethodPost, "https://server/", name)
				got, err := io.ReadAll(response.Body)
				_ = response.Body.Close()
				want := []byte{}
				for i := range 200 {
					want = binary.BigEndian.AppendUint32(append(want, name...), uint32(i))
				}
				if err != nil || !bytes.Equal(want, got) {
					t.Errorf("got %d bytes, want %d, error %v", len(got), len(want), err)
				}
			}
		})
	}
	all.Wait()
}
