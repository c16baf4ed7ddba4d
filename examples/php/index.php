<!doctype html>
<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>PHP</title>
<link rel="stylesheet" href="/style.css">
<h1>Hello, <?= htmlspecialchars($_GET['name'] ?? 'World') ?>!</h1>
<form method="post"><input name="text" placeholder="say something"><button>Send</button></form>
<?php if ($_SERVER['REQUEST_METHOD'] === 'POST'): ?>
<p>You said: <q><?= htmlspecialchars($_POST['text'] ?? '') ?></q></p>
<?php endif ?>
<p>PHP <?= PHP_VERSION ?>, asked by <?= $_SERVER['REMOTE_ADDR'] ?> for <?= htmlspecialchars($_SERVER['REQUEST_URI']) ?></p>
