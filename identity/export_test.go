package identity

// ForgetLifetime is for tests that compare identities.
func ForgetLifetime(id *Identity) { id.lifetime = 0 }
