package access

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
)

const largestAnswer = 256 << 10

// APIServer is the API server, and the service account with which it is asked.
type APIServer struct {
	URL     string // https://host:port
	Account string // folder of token and ca.crt; the kubelet renews the token every hour
}

type user struct {
	Username string              `json:"username"`
	UID      string              `json:"uid,omitempty"`
	Groups   []string            `json:"groups,omitempty"`
	Extra    map[string][]string `json:"extra,omitempty"`
}

type tokenStatus struct {
	Authenticated bool `json:"authenticated"`
	User          user `json:"user"`
}

type accessStatus struct {
	Allowed bool `json:"allowed"`
}

// Review asks by a TokenReview and a SubjectAccessReview.
func (s *APIServer) Review(ctx context.Context, token, path string) (Answer, error) {
	client, own, err := s.client()
	if err != nil {
		return Answer{}, err
	}
	defer client.CloseIdleConnections()
	var known struct {
		Status tokenStatus `json:"status"`
	}
	err = s.create(ctx, client, own, "/apis/authentication.k8s.io/v1/tokenreviews", map[string]any{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": map[string]any{"token": token},
	}, &known)
	who := known.Status.User
	if err != nil || !known.Status.Authenticated || who.Username == "" {
		return Answer{}, err
	}
	var may struct {
		Status accessStatus `json:"status"`
	}
	err = s.create(ctx, client, own, "/apis/authorization.k8s.io/v1/subjectaccessreviews", map[string]any{
		"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
		"spec": map[string]any{
			"user": who.Username, "uid": who.UID, "groups": who.Groups, "extra": who.Extra,
			"nonResourceAttributes": map[string]any{"path": path, "verb": "get"},
		},
	}, &may)
	if err != nil {
		return Answer{}, err
	}
	return Answer{User: who.Username, Allowed: may.Status.Allowed}, nil
}

// client returns a client that trusts the account's ca.crt, and the account's token, as both are now.
func (s *APIServer) client() (*http.Client, string, error) {
	token, err := os.ReadFile(filepath.Join(s.Account, "token"))
	if err != nil {
		return nil, "", fmt.Errorf("no token of a service account: %w", err)
	}
	file := filepath.Join(s.Account, "ca.crt")
	authorities, err := os.ReadFile(file)
	if err != nil {
		return nil, "", fmt.Errorf("no authority of the API server: %w", err)
	}
	trusted := x509.NewCertPool()
	if !trusted.AppendCertsFromPEM(authorities) {
		return nil, "", fmt.Errorf("%s holds no certificate", file)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: trusted}}
	return &http.Client{Transport: transport}, strings.TrimSpace(string(token)), nil
}

func (s *APIServer) create(ctx context.Context, client *http.Client, own, path string, object, created any) error {
	body, err := json.Marshal(object)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+own)
	request.Header.Set("Content-Type", "application/json")
	answer, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("the API server does not answer: %w", err)
	}
	defer func() { _ = answer.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(answer.Body, largestAnswer))
	if err != nil {
		return fmt.Errorf("the API server does not answer: %w", err)
	}
	if answer.StatusCode != http.StatusCreated && answer.StatusCode != http.StatusOK {
		status := struct{ Message string }{Message: answer.Status}
		_ = json.Unmarshal(data, &status)
		return fmt.Errorf("the API server refuses the question: %s", status.Message)
	}
	return json.Unmarshal(data, created)
}
